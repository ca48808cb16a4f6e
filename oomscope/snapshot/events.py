"""Turn one device's list of event dicts into the columns of a trace, a column at a time.

Reading a column with one comprehension and checking it with one pass keeps the cost near that of unpickling; the
place of a wrong value is looked for only once there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.builder import DEFAULT_POOL, UNKNOWN_MOMENT, Interned
from oomscope.snapshot.lifetimes import BEFORE, pair
from oomscope.snapshot.metadata import from_text
from oomscope.snapshot.reader import Reader
from oomscope.snapshot.trace import Action, Moment, Segment, Stack, Trace

ACTIONS: Final = {action.name.lower(): int(action) for action in Action if action is not Action.UNKNOWN}

Events = Sequence[dict[str, Any]]
Ids = NDArray[np.int32]
Scalar = TypeVar("Scalar", np.int64, np.uint64)


class _Said(NamedTuple):
    """The columns that come from ``user_metadata``, and what they index."""

    moment_id: Ids
    category: NDArray[np.int8]
    module_id: Ids
    forward_stack_id: Ids
    moments: tuple[Moment, ...]
    modules: tuple[str, ...]


def trace_of(reader: Reader, device: int, events: Events, segments: Sequence[Segment], place: str) -> Trace:
    """Return the trace of one device.

    Args:
        reader: checks values and names what is wrong.
        device: index of the device.
        events: the event dicts, oldest first, of any schema version.
        segments: the device's segments at the end of the trace.
        place: where the events stand in the file, for messages.

    Raises:
        SnapshotError: an event lacks a field or has one of the wrong type.
    """
    for index, event in enumerate(events):
        if type(event) is not dict:
            raise reader.error(f"{place}[{index}]", "mapping")
    action, unknown_actions = _actions(reader, events, place)
    stacks: Interned[Stack] = Interned(())
    stack_id = _stack_ids(reader, events, stacks, place)
    said = _said(events, stacks)
    pool_id, pools = _pools(reader, events, place)
    addresses = [event["addr"] if "addr" in event else event.get("device_free", 0) for event in events]
    columns: dict[str, Any] = {
        "device": device,
        "action": action,
        "address": _integers(reader, addresses, np.uint64, place, "addr"),
        "size": _integers(reader, [event.get("size", 0) for event in events], np.int64, place, "size"),
        "stream": _integers(reader, [event.get("stream", 0) for event in events], np.int64, place, "stream"),
        "time_us": _integers(reader, [event.get("time_us", -1) for event in events], np.int64, place, "time_us"),
        "stack_id": stack_id,
        "pool_id": pool_id,
        "stacks": stacks.items(),
        "pools": pools,
        "unknown_actions": unknown_actions,
        **said._asdict(),
    }
    return Trace(**columns, missing=_missing(Trace(**columns), segments))


def _missing(trace: Trace, segments: Sequence[Segment]) -> tuple[str, ...]:
    """Return what the source of ``trace`` did not record."""
    if not len(trace):
        return ("trace",)
    absent = {
        "time_us": bool((trace.time_us < 0).all()),
        "frames": not trace.stack_id.any(),
        "start": bool((pair(trace, segments).born == BEFORE).any()),
    }
    return tuple(name for name, is_absent in absent.items() if is_absent)


def _actions(reader: Reader, events: Events, place: str) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Return the action column and the names that this version does not know."""
    names: list[Any] = [event.get("action") for event in events]
    for index, name in enumerate(names):
        if type(name) is not str:
            raise reader.error(f"{place}[{index}].action", "text")
    unknown = tuple(name for name in dict.fromkeys(names) if name not in ACTIONS)
    codes = {**ACTIONS, **dict.fromkeys(unknown, int(Action.UNKNOWN))}
    return np.array([codes[name] for name in names], dtype=np.int8), unknown


def _integers(reader: Reader, values: Sequence[Any], dtype: type[Scalar], place: str, key: str) -> NDArray[Scalar]:
    """Return ``values`` as a column, refusing whatever is no integer or does not fit."""
    try:
        if set(map(type, values)) <= {int}:
            return np.array(values, dtype=dtype)
    except OverflowError:
        pass
    bounds = np.iinfo(dtype)
    wrong = next(
        index for index, value in enumerate(values) if type(value) is not int or not bounds.min <= value <= bounds.max
    )
    raise reader.error(f"{place}[{wrong}].{key}", f"{bounds.bits}-bit integer")


def _stack_ids(reader: Reader, events: Events, stacks: Interned[Stack], place: str) -> Ids:
    """Return the stack column; an event without ``frames`` has the empty stack."""
    id_of_object: dict[int, int] = {}
    column = np.zeros(len(events), dtype=np.int32)
    for index, event in enumerate(events):
        frames = event.get("frames")
        if not frames:
            continue
        stack = reader.stack(frames, f"{place}[{index}].frames")
        stack_id = id_of_object.get(id(stack))
        if stack_id is None:
            stack_id = id_of_object[id(stack)] = stacks.id_of(stack)
        column[index] = stack_id
    return column


def _said(events: Events, stacks: Interned[Stack]) -> _Said:
    """Return what the events' ``user_metadata`` says; each distinct text is parsed once."""
    texts = [event.get("user_metadata", "") for event in events]
    texts = [text if isinstance(text, str) else "" for text in texts]
    text_ids: Interned[str] = Interned("")
    text_id = np.array([text_ids.id_of(text) for text in texts], dtype=np.int64)
    moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
    modules: Interned[str] = Interned("")
    parsed = [from_text(text) for text in text_ids.items()]
    return _Said(
        moment_id=np.array([moments.id_of(each.moment) for each in parsed], dtype=np.int32)[text_id],
        category=np.array([each.category for each in parsed], dtype=np.int8)[text_id],
        module_id=np.array([modules.id_of(each.module) for each in parsed], dtype=np.int32)[text_id],
        forward_stack_id=np.array([stacks.id_of(each.forward_stack) for each in parsed], dtype=np.int32)[text_id],
        moments=moments.items(),
        modules=modules.items(),
    )


def _pools(reader: Reader, events: Events, place: str) -> tuple[Ids, tuple[tuple[int, int], ...]]:
    """Return the pool column and the pools; events of torch before 2026 name none."""
    pools: Interned[tuple[int, int]] = Interned(DEFAULT_POOL)
    column = [
        pools.id_of(reader.pool(event["pool_id"], f"{place}[{index}].pool_id")) if "pool_id" in event else 0
        for index, event in enumerate(events)
    ]
    return np.array(column, dtype=np.int32), pools.items()
