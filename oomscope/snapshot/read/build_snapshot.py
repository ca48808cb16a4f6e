"""Turn the flat tables of a snapshot file into a :class:`~oomscope.snapshot.trace.Snapshot`, and say what was missing.

Here the names that PyTorch writes get their meaning: actions, states of blocks, what ``user_metadata`` says. An action
that this version does not know is kept and reported, never fatal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.interned import Interned, counted
from oomscope.snapshot.metadata import from_text
from oomscope.snapshot.provenance import KEY, provenance_of
from oomscope.snapshot.read.snapshot_fields import STATES, flatten
from oomscope.snapshot.read.tables import Tables
from oomscope.snapshot.trace import (
    DEFAULT_POOL,
    UNKNOWN_MOMENT,
    Action,
    Annotation,
    Block,
    Frame,
    Moment,
    Segment,
    Snapshot,
    Stack,
    Trace,
)

ACTIONS: Final = {action.name.lower(): action for action in Action if action is not Action.UNKNOWN}


def snapshot_of(document: object, *, where: str) -> Snapshot:
    """Return the snapshot that plain values, such as ``torch.cuda.memory._snapshot()`` returns, describe.

    Raises:
        SnapshotError: the values do not have the shape of a snapshot; the message names ``where`` and the place.
    """
    return snapshot_from(flatten(document, where=where))


def snapshot_from(tables: Tables) -> Snapshot:
    """Return the snapshot that tables of :func:`~oomscope.snapshot.read.snapshot_fields.flatten` describe."""
    file = _File(tables)
    segments = tuple(file.segments())
    traces = tuple(file.traces(segments))
    missing = tuple(tables.values["missing"])
    return Snapshot(
        segments=segments,
        traces=traces,
        allocator_settings=tables.values["allocator_settings"],
        annotations=(*file.annotations(), *(span for trace in traces for span in _spans_inside(trace))),
        missing=missing if any(map(len, traces)) else (*missing, "trace"),
        provenance=provenance_of(tables.values[KEY]),
    )


def empty_trace(device: int) -> Trace:
    """Return the trace of a device without a recording."""
    return _File(flatten({"segments": []}, where="")).trace(device, None, [])


class _File:
    """The tables of one file, with its stacks made once."""

    def __init__(self, tables: Tables) -> None:
        self._columns = tables.columns
        self._values = tables.values
        self._texts: list[str] = tables.values["texts"]
        frames = list(
            map(
                Frame,
                map(self._texts.__getitem__, self._columns["frames.filename"]),
                self._columns["frames.line"],
                map(self._texts.__getitem__, self._columns["frames.name"]),
            )
        )
        rest = map(frames.__getitem__, self._columns["stacks.frame"])
        self._stacks: list[Stack] = [tuple(islice(rest, length)) for length in self._columns["stacks.length"]]

    def traces(self, segments: Sequence[Segment]) -> Iterator[Trace]:
        """Yield the trace of each device that has events or segments."""
        pools = {row["device"]: row["pools"] for row in self._values["device_traces"]}
        for device in sorted(pools.keys() | {segment.device for segment in segments}):
            key = f"device_traces[{device}]" if device in pools else None
            yield self.trace(device, key, pools.get(device, []))

    def segments(self) -> Iterator[Segment]:
        """Yield the segments with their blocks."""
        blocks = self._blocks()
        names = "device address total_size stream segment_type is_expandable pool_first pool_second"
        columns = self._rows("segments", f"{names} stack counter block_count")
        for device, address, size, stream, kind, expandable, first, second, stack, counter, count in columns:
            yield Segment(
                device=device,
                address=address,
                total_size=size,
                stream=stream,
                segment_type=self._texts[kind],
                is_expandable=bool(expandable),
                blocks=tuple(islice(blocks, count)),
                pool_id=(first, second),
                stack=self._stacks[stack],
                requested_counter=counter,
            )

    def annotations(self) -> Iterator[Annotation]:
        """Yield the external annotations."""
        for name, stage, device, time_us in self._rows("external_annotations", "name stage device time_us"):
            yield Annotation(name=self._texts[name], stage=self._texts[stage], device=device, time_us=time_us)

    def _rows(self, key: str, names: str) -> Iterator[tuple[int, ...]]:
        return zip(*(self._columns[f"{key}.{name}"] for name in names.split()), strict=True)

    def _blocks(self) -> Iterator[Block]:
        columns = self._rows("segments.blocks", "address size requested_size state stack")
        for address, size, requested, state, stack in columns:
            yield Block(
                address=address,
                size=size,
                requested_size=requested,
                state=STATES[self._texts[state]],
                stack=self._stacks[stack],
            )

    def trace(self, device: int, key: str | None, pools: list[Any]) -> Trace:
        """Return the trace of one device, whose columns begin with ``key``; None: there are none."""

        def column(name: str, dtype: type[np.generic]) -> NDArray[Any]:
            return np.array(self._columns[f"{key}.{name}"] if key else (), dtype=dtype)

        def numbered(name: str, number: Callable[[int], int]) -> NDArray[np.int32]:
            """Return a column whose distinct values are numbers of the file, each as a number of the trace."""
            used, place = counted(column(name, np.int32))
            return np.array([number(each) for each in used], dtype=np.int32)[place]

        used_texts, text_id = counted(column("action", np.int32))
        names = [self._texts[number] for number in used_texts]
        codes = np.array([ACTIONS.get(name, Action.UNKNOWN) for name in names], dtype=np.int8)
        stacks: Interned[Stack] = Interned(())
        moments: Interned[Moment] = Interned(UNKNOWN_MOMENT)
        modules: Interned[str] = Interned("")
        stack_id = numbered("stack", lambda number: stacks.id_of(self._stacks[number]))
        metadata = {number: from_text(self._texts[number]) for number in counted(column("user_metadata", np.int32))[0]}
        # An event's metadata takes precedence over its ``forward_frames``.
        metadata_module = numbered("user_metadata", lambda number: modules.id_of(metadata[number].module))
        metadata_stack = numbered("user_metadata", lambda number: stacks.id_of(metadata[number].forward_stack))
        module_behind = numbered("forward_module", lambda number: modules.id_of(self._texts[number]))
        attributed_stack = numbered("forward_stack", lambda number: stacks.id_of(self._stacks[number]))
        columns: dict[str, Any] = {
            "device": device,
            "action": codes[text_id],
            "address": column("address", np.uint64),
            "size": column("size", np.int64),
            "stream": column("stream", np.int64),
            "time_us": column("time_us", np.int64),
            "stack_id": stack_id,
            "moment_id": numbered("user_metadata", lambda number: moments.id_of(metadata[number].moment)),
            "category": numbered("user_metadata", lambda number: metadata[number].category).astype(np.int8),
            "module_id": np.where(metadata_module > 0, metadata_module, module_behind),
            "forward_stack_id": np.where(metadata_stack > 0, metadata_stack, attributed_stack),
            "pool_id": column("pool", np.int32),
            "stacks": stacks.items(),
            "moments": moments.items(),
            "modules": modules.items(),
            "pools": tuple((first, second) for first, second in pools) or (DEFAULT_POOL,),
            "names_pools": len(pools) > 0,
            "unknown_actions": tuple(name for name in names if name not in ACTIONS),
        }
        return Trace(**columns, missing=_missing(Trace(**columns)))


def _missing(trace: Trace) -> tuple[str, ...]:
    """Return what the source of ``trace`` did not record."""
    if not len(trace):
        return ("trace",)
    absent = {"time_us": bool((trace.time_us < 0).all()), "frames": not trace.stack_id.any()}
    return tuple(name for name, is_absent in absent.items() if is_absent)


def _spans_inside(trace: Trace) -> Iterator[Annotation]:
    """Yield the spans that torch of spring 2024 wrote among the events: frame name START or END, file name the text."""
    for index in np.flatnonzero(trace.action == Action.USER_DEFINED).tolist():
        stack = trace.stacks[trace.stack_id[index]]
        if stack:
            yield Annotation(
                name=stack[0].filename, stage=stack[0].name, device=trace.device, time_us=int(trace.time_us[index])
            )
