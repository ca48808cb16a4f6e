"""Turn the plain values of a snapshot file, of any torch since 2.0, into a :class:`~oomscope.snapshot.trace.Snapshot`.

PyTorch never numbered its schema: fields came and went, and what a file holds is told by which keys it has. Every
field is checked for its type, what a file does not record is said in ``missing``, and no action is fatal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from oomscope.errors import SnapshotError
from oomscope.snapshot.events import trace_of
from oomscope.snapshot.provenance import KEY, provenance_of
from oomscope.snapshot.reader import REMEDY, Reader
from oomscope.snapshot.trace import Action, Annotation, Block, Segment, Snapshot, Stack, Trace

STATES: Final = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",
    "inactive": "inactive",
}
"""Block states; the third is the name in PyTorch's documentation, which its code never writes."""


def snapshot_of(document: object, *, where: str) -> Snapshot:
    """Return the snapshot that plain values describe.

    Args:
        document: a dict with ``segments`` and ``device_traces``, or the bare list of segments of early dumps.
        where: the file's name, for messages.

    Raises:
        SnapshotError: the values do not have the shape of a snapshot; the message names the place.
    """
    reader = Reader(where)
    root = {"segments": document} if isinstance(document, list) else document
    if not isinstance(root, dict) or "segments" not in root:
        raise SnapshotError("no memory snapshot: it has no segments", where=where, remedy=REMEDY)
    segments = tuple(_segment(reader, value, place) for place, value in reader.items(root, "segments"))
    traces = tuple(_traces(reader, root, segments))
    spans = tuple(_annotation(reader, value, place) for place, value in reader.items(root, "external_annotations"))
    return Snapshot(
        segments=segments,
        traces=traces,
        allocator_settings=dict(reader.mapping(root.get("allocator_settings", {}), "allocator_settings")),
        annotations=spans + tuple(span for trace in traces for span in _spans_inside(trace)),
        missing=_missing(root, traces),
        provenance=provenance_of(root.get(KEY)),
    )


def _missing(root: dict[str, Any], traces: tuple[Trace, ...]) -> tuple[str, ...]:
    absent = [name for name in ("allocator_settings", "external_annotations") if name not in root]
    return (*absent, "trace") if not any(map(len, traces)) else tuple(absent)


def _traces(reader: Reader, root: dict[str, Any], segments: tuple[Segment, ...]) -> Iterator[Trace]:
    """Yield the trace of each device that has events or segments."""
    events_of = [reader.sequence(events, place) for place, events in reader.items(root, "device_traces")]
    devices = {segment.device for segment in segments} | {index for index, events in enumerate(events_of) if events}
    for device in sorted(devices):
        events = events_of[device] if 0 <= device < len(events_of) else []
        own = [segment for segment in segments if segment.device == device]
        yield trace_of(reader, device, events, own, f"device_traces[{device}]")


def _segment(reader: Reader, value: object, place: str) -> Segment:
    fields = reader.mapping(value, place)
    address = reader.number(fields, "address", place)
    return Segment(
        device=reader.number(fields, "device", place, default=0),
        address=address,
        total_size=reader.size(fields, "total_size", place),
        stream=reader.number(fields, "stream", place, default=0),
        segment_type=reader.text(fields.get("segment_type", "large"), f"{place}.segment_type"),
        is_expandable=fields.get("is_expandable", False) is True,
        blocks=tuple(_blocks(reader, fields, address, place)),
        pool_id=reader.pool(fields.get("segment_pool_id", (0, 0)), f"{place}.segment_pool_id"),
        stack=reader.stack(fields.get("frames", []), f"{place}.frames"),
    )


def _blocks(reader: Reader, segment: dict[str, Any], address: int, place: str) -> Iterator[Block]:
    """Yield the blocks of a segment; torch 2.0 wrote no addresses, but blocks lie end to end."""
    for here, value in reader.items(segment, "blocks", place):
        fields = reader.mapping(value, here)
        size = reader.size(fields, "size", here)
        state = STATES.get(reader.text(fields.get("state"), f"{here}.state"))
        if state is None:
            raise reader.error(f"{here}.state", "block state")
        address = reader.number(fields, "address", here, default=address)
        tenant = _last_tenant(reader, fields, here)
        yield Block(
            address=address,
            size=size,
            requested_size=reader.size(
                fields, "requested_size", here, default=reader.size(tenant, "real_size", here, default=size)
            ),
            state=state,
            stack=_block_stack(reader, fields, tenant, here),
        )
        address += size


def _last_tenant(reader: Reader, block: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the newest entry of torch 2.0's ``history`` of a block; empty in later files."""
    history = reader.items(block, "history", place)
    return reader.mapping(history[0][1], history[0][0]) if history else {}


def _block_stack(reader: Reader, block: dict[str, Any], tenant: dict[str, Any], place: str) -> Stack:
    frames = block["frames"] if "frames" in block else tenant.get("frames", [])
    return reader.stack(frames, f"{place}.frames")


def _annotation(reader: Reader, value: object, place: str) -> Annotation:
    fields = reader.mapping(value, place)
    return Annotation(
        name=reader.text(fields.get("name"), f"{place}.name"),
        stage=reader.text(fields.get("stage"), f"{place}.stage"),
        device=reader.number(fields, "device", place, default=0),
        time_us=reader.number(fields, "time_us", place, default=-1),
    )


def _spans_inside(trace: Trace) -> Iterator[Annotation]:
    """Yield the spans that torch of spring 2024 wrote among the events: frame name START or END, file name the text."""
    for index in np.flatnonzero(trace.action == Action.USER_DEFINED).tolist():
        stack = trace.stacks[trace.stack_id[index]]
        if stack:
            yield Annotation(
                name=stack[0].filename, stage=stack[0].name, device=trace.device, time_us=int(trace.time_us[index])
            )
