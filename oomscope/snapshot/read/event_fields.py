"""Turn one device's list of event dicts into columns, a thousand events at a time.

Reading whole columns of events that are still in the cache, and checking each as a whole, costs about as much as
unpickling them; the place of a wrong value is looked for only once there is one.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

from oomscope.snapshot.forward_frames import frames_in, number_in
from oomscope.snapshot.read.reader import Reader
from oomscope.snapshot.read.tables import Column

MAX_FRAMES: Final = 1000
"""Frames of one traceback that are read, innermost last; more are no program's."""
_NOTHING: Final = (0, 0)


class ForwardFrames:
    """The forward stacks of one file; what is not well formed under ``PLACES_KEY`` counts as unknown."""

    def __init__(self, reader: Reader, places: object) -> None:
        self._reader = reader
        self._places = places if isinstance(places, list) else []
        self._known: dict[tuple[object, ...], tuple[int, int]] = {}

    def columns(self, values: Sequence[Any]) -> tuple[Column, Column]:
        """Return the numbers of stacks and of modules' names for each event's ``forward_frames``.

        What is no list of texts says nothing: the field is young, and no total rests on it.
        """
        numbers = [self._numbers(value) if value else _NOTHING for value in values]
        return array("i", [stack for stack, _ in numbers]), array("i", [module for _, module in numbers])

    def _numbers(self, value: Any) -> tuple[int, int]:
        if type(value) is not list or len(value) > MAX_FRAMES or set(map(type, value)) != {str}:
            return _NOTHING
        key = tuple(value)
        found = self._known.get(key)
        if found is None:
            number = number_in(value[0]) if len(value) == 1 else None
            found = self._known[key] = (self._stack(frames_in(value)), 0) if number is None else self._place(number)
        return found

    def _place(self, number: int) -> tuple[int, int]:
        match self._places[number : number + 1]:
            case [[str(module), list(rows)]] if len(rows) <= MAX_FRAMES:
                frames = [row for row in rows if _is_frame(row)]
                return self._stack([tuple(row) for row in frames]), self._text(module)
        return _NOTHING

    def _stack(self, frames: list[tuple[Any, ...]]) -> int:
        texts, stacks = self._reader.frames, self._reader.stacks
        rows = [(self._text(file), line, self._text(name)) for file, line, name in frames]
        stack = tuple(texts.setdefault(row, len(texts)) for row in rows)
        return stacks.setdefault(stack, len(stacks))

    def _text(self, text: str) -> int:
        texts = self._reader.texts
        return texts.setdefault(text, len(texts))


def _is_frame(row: object) -> bool:
    match row:
        case [str(), int(line), str()]:
            return type(line) is int and 0 <= line < 2**31
    return False


BATCH: Final = 1024
"""Events at a time."""
DEFAULT_POOL: Final = (0, 0)
EVENT_FIELDS: Final[dict[str, Any]] = {
    "action": None,
    "addr": None,
    "size": 0,
    "stream": 0,
    "time_us": -1,
    "frames": None,
    "pool_id": None,
    "user_metadata": "",
    "forward_frames": None,
}
"""Keys of an event that are read, and what stands for one that an event lacks."""


def event_columns(
    reader: Reader, events: list[Any], place: str, forward: ForwardFrames
) -> tuple[dict[str, Column], list[tuple[int, int]]]:
    """Return the columns of a trace, and the pools that ``pool`` numbers.

    No pools where the events name none; then ``pool`` is 0 throughout. The first event tells it, or any private pool.
    Events are of any schema version: ``oom`` events have ``device_free`` for an address, those before 2024 no
    ``time_us``, those before 2026 no ``pool_id``.

    Raises:
        SnapshotError: an event lacks its action or has a value of the wrong type.
    """
    pools = {DEFAULT_POOL: 0}
    batches = (events[start : start + BATCH] for start in range(0, len(events), BATCH))
    columns = joined(_batch(reader, batch, pools, f"{place}[]", forward) for batch in batches)
    are_named = len(pools) > 1 or (len(events) > 0 and events[0].get("pool_id") is not None)
    return columns, list(pools) if are_named else []


def joined(tables: Iterable[dict[str, Column]]) -> dict[str, Column]:
    """Return the columns of several tables, one after the other."""
    columns: dict[str, Column] = {}
    for table in tables:
        for name, column in table.items():
            columns.setdefault(name, array(column.typecode)).extend(column)
    return columns


def _batch(
    reader: Reader, batch: list[Any], pools: dict[tuple[int, int], int], place: str, forward: ForwardFrames
) -> dict[str, Column]:
    values = _values(reader.mappings(batch, place))
    texts = values["user_metadata"]
    if set(map(type, texts)) != {str}:  # not oomscope's, which is text
        texts = [text if type(text) is str else "" for text in texts]
    forward_stack, forward_module = forward.columns(values["forward_frames"])
    return {
        "action": reader.text_numbers(values["action"], f"{place}.action"),
        "address": reader.integers(values["addr"], "Q", f"{place}.addr"),
        "size": reader.sizes(values["size"], f"{place}.size"),
        "stream": reader.integers(values["stream"], "q", f"{place}.stream"),
        "time_us": reader.integers(values["time_us"], "q", f"{place}.time_us"),
        "stack": reader.stack_numbers(values["frames"], f"{place}.frames"),
        "pool": _pool_numbers(reader, values["pool_id"], pools, f"{place}.pool_id"),
        "user_metadata": reader.text_numbers(texts, f"{place}.user_metadata"),
        "forward_stack": forward_stack,
        "forward_module": forward_module,
    }


def _values(events: list[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Return the values under each of :data:`EVENT_FIELDS`'s keys, event by event.

    What the first event has, all of them usually have, and are asked for at once.
    """
    usual = [key for key in EVENT_FIELDS if key in events[0]]
    columns: dict[str, Sequence[Any]] = {}
    if len(usual) > 1:
        with contextlib.suppress(KeyError):
            columns = dict(zip(usual, zip(*map(itemgetter(*usual), events), strict=True), strict=True))
    for key, absent in EVENT_FIELDS.items():
        if key not in columns:
            columns[key] = [event.get(key, absent) for event in events]
    if None in columns["addr"] or "oom" in columns["action"]:
        columns["addr"] = list(map(_address, events))
    return columns


def _address(event: dict[str, Any]) -> Any:
    """Return the address of an event; of an ``oom`` event what was free, whatever it has for an address."""
    if event.get("action") == "oom":
        return event.get("device_free", event.get("addr"))
    return event.get("addr", event.get("device_free", 0))


def _pool_numbers(reader: Reader, values: Sequence[Any], pools: dict[tuple[int, int], int], place: str) -> Column:
    """Return the numbers of pool ids; events of torch before 2026 name none."""
    if values.count(None) == len(values):
        return array("i", bytes(4 * len(values)))
    numbers = array("i")
    previous, number = None, pools[DEFAULT_POOL]  # most events in a row are of one pool
    for value in values:
        if value is not previous and (value != previous or type(value) is not type(previous)):
            pool = DEFAULT_POOL if value is None else reader.pool(value, place)
            previous, number = value, pools.setdefault(pool, len(pools))
        numbers.append(number)
    return numbers
