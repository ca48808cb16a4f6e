"""Turn one device's list of event dicts into columns, a thousand events at a time.

Reading whole columns of events that are still in the cache, and checking each as a whole, costs about as much as
unpickling them; the place of a wrong value is looked for only once there is one.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from oomscope.snapshot.event_fields import FREE_UNKNOWN, frames_in, number_in
from oomscope.snapshot.read.reader import Reader
from oomscope.snapshot.read.tables import EVENTS, Column

MAX_FRAMES: Final = 1000
"""Frames of one traceback that are read, innermost last; more are no program's."""
_NOTHING: Final = (0, 0)


class ForwardFrames:
    """The forward stacks of one file.

    Args:
        reader: stores texts, frames and stacks.
        places: what the file says under ``PLACES_KEY``; what is not well formed there counts as unknown.
    """

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
        case [str(), int(line), str()] if type(line) is int and 0 <= line < 2**31:
            return True
    return False


BATCH: Final = 1024
"""Events at a time."""
DEFAULT_POOL: Final = (0, 0)
MAX_TOTAL: Final = 2**63 - 1
"""Bytes of all events together, and of all segments, so that no sum over either overflows a column."""
ABSENT: Final[dict[str, Any]] = {
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
    """Return the columns of :data:`~oomscope.snapshot.read.tables.EVENTS`, and the pools that ``pool`` numbers.

    No pools where the events name none; then ``pool`` is 0 throughout. The first event tells it, or any private pool.

    Args:
        reader: checks values and names what is wrong.
        events: the event dicts, oldest first, of any schema version. ``oom`` events have ``device_free`` for an
            address (:data:`~oomscope.snapshot.event_fields.FREE_UNKNOWN` stands for one that lacks it),
            those before 2024 no ``time_us``, those before 2026 no ``pool_id``.
        place: where the events stand in the file, for messages.
        forward: reads what the events say of the forward pass.

    Raises:
        SnapshotError: an event lacks its action or has a value of the wrong type.
    """
    columns = {name: array(typecode) for name, typecode in EVENTS.items()}
    pools = {DEFAULT_POOL: 0}
    for start in range(0, len(events), BATCH):
        batch = events[start : start + BATCH]
        for name, column in _batch(reader, batch, pools, f"{place}[%d]", start, forward).items():
            columns[name].extend(column)
    if sum(columns["size"]) > MAX_TOTAL:
        raise reader.error(place, "trace: its sizes add up to more than 8 EiB")
    are_named = len(pools) > 1 or (len(events) > 0 and events[0].get("pool_id") is not None)
    return columns, list(pools) if are_named else []


def _batch(  # noqa: PLR0917 - one call, beside which it stands
    reader: Reader, batch: list[Any], pools: dict[tuple[int, int], int], place: str, start: int, forward: ForwardFrames
) -> dict[str, Column]:
    def where(index: int) -> str:
        return place % (start + index)

    values = _values(reader.mappings(batch, where))
    said = values["user_metadata"]
    if set(map(type, said)) != {str}:  # somebody else's; ours is text
        said = [text if type(text) is str else "" for text in said]
    forward_stack, forward_module = forward.columns(values["forward_frames"])
    return {
        "action": reader.text_numbers(values["action"], where, "action"),
        "address": reader.integers(values["addr"], "Q", where, lambda index: _address_key(batch[index]) or "addr"),
        "size": reader.sizes(values["size"], where, "size"),
        "stream": reader.integers(values["stream"], "q", where, "stream"),
        "time_us": reader.integers(values["time_us"], "q", where, "time_us"),
        "stack": reader.stack_numbers(values["frames"], where),
        "pool": _pool_numbers(reader, values["pool_id"], pools, place, start),
        "user_metadata": reader.text_numbers(said, where, "user_metadata"),
        "forward_stack": forward_stack,
        "forward_module": forward_module,
    }


def _values(events: list[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Return the values under each of :data:`ABSENT`'s keys, event by event.

    What the first event has, all of them usually have, and are asked for at once.
    """
    usual = [key for key in ABSENT if key in events[0]]
    columns: dict[str, Sequence[Any]] = {}
    if len(usual) > 1:
        with contextlib.suppress(KeyError):
            columns = dict(zip(usual, zip(*map(itemgetter(*usual), events), strict=True), strict=True))
    for key, absent in ABSENT.items():
        if key not in columns:
            columns[key] = [event.get(key, absent) for event in events]
    if None in columns["addr"] or "oom" in columns["action"]:
        columns["addr"] = [_address(event) for event in events]
    return columns


def _address(event: dict[str, Any]) -> Any:
    """Return the address of an event; of an ``oom`` event what was free, whatever it has for an address."""
    key = _address_key(event)
    return event[key] if key else FREE_UNKNOWN if event.get("action") == "oom" else 0


def _address_key(event: dict[str, Any]) -> str:
    """Return under which key an event has its address; none where it has neither."""
    keys = ("device_free", "addr") if event.get("action") == "oom" else ("addr", "device_free")
    return next((key for key in keys if key in event), "")


def _pool_numbers(
    reader: Reader, values: Sequence[Any], pools: dict[tuple[int, int], int], place: str, start: int
) -> Column:
    """Return the numbers of pool ids; events of torch before 2026 name none."""
    if values.count(None) == len(values):
        return array("i", bytes(4 * len(values)))
    numbers = array("i")
    previous, number = None, pools[DEFAULT_POOL]  # of one pool come most events in a row
    for index, value in enumerate(values):
        if value is not previous and (value != previous or type(value) is not type(previous)):
            pool = DEFAULT_POOL if value is None else reader.pool(value, f"{place % (start + index)}.pool_id")
            previous, number = value, pools.setdefault(pool, len(pools))
        numbers.append(number)
    return numbers
