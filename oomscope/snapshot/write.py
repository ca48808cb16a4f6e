"""Write a snapshot in PyTorch's own pickle schema, for PyTorch's viewer and every other tool that reads it.

What PyTorch's events have no field for (phase, category, module, forward stack) travels in their ``user_metadata``
(:mod:`oomscope.snapshot.metadata`). A file appears whole or not at all.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from oomscope.errors import SnapshotError
from oomscope.files import write_whole
from oomscope.snapshot.metadata import Metadata, to_text
from oomscope.snapshot.provenance import KEY
from oomscope.snapshot.trace import Action, Category, Frame, Segment, Snapshot, Stack, Trace

PICKLE_PROTOCOL: Final = 4
"""Pickle protocol: the default through Python 3.13, and the newest that PyTorch's web viewer accepts."""


def write_snapshot(snapshot: Snapshot, path: Path | str, *, force: bool = False) -> Path:
    """Write ``snapshot`` to ``path`` (gzip-compressed where the name ends in ``.gz``) and return the path.

    The schema is that of ``torch.cuda.memory._snapshot()``: ``segments``, ``device_traces`` (one list a device
    index), ``allocator_settings``, ``external_annotations``.

    Raises:
        SnapshotError: the file exists and ``force`` is not set, or the place cannot be written to.
    """
    target = Path(path)
    content = pickle.dumps(to_document(snapshot), protocol=PICKLE_PROTOCOL)
    if target.suffix == ".gz":
        content = gzip.compress(content, compresslevel=6, mtime=0)
    try:
        write_whole(target, content, force=force)
    except FileExistsError as error:
        remedy = "choose another name or allow overwriting"
        raise SnapshotError("file exists", where=str(target), remedy=remedy) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise SnapshotError(f"cannot write: {reason}", where=str(target), remedy="choose another place") from error
    return target


def to_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return the plain dicts and lists of PyTorch's schema; equal frames are one object, as the pickle shares them."""
    frames_of = _FrameLists()
    devices = [*(trace.device for trace in snapshot.traces), *(segment.device for segment in snapshot.segments)]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max(devices, default=-1) + 1)]
    for trace in snapshot.traces:
        traces[trace.device] = list(_events(trace, frames_of))
    document: dict[str, Any] = {
        "segments": [_segment(segment, frames_of) for segment in snapshot.segments],
        "device_traces": traces,
        "allocator_settings": dict(snapshot.allocator_settings),
        "external_annotations": [asdict(mark) for mark in snapshot.annotations],
    }
    if snapshot.provenance is not None:
        document[KEY] = snapshot.provenance.to_json()
    return document


class _FrameLists:
    """Stacks as PyTorch's lists of dicts, each distinct frame and stack made once."""

    def __init__(self) -> None:
        self._frames: dict[Frame, dict[str, Any]] = {}
        self._lists: dict[Stack, list[dict[str, Any]]] = {}

    def __call__(self, stack: Stack) -> list[dict[str, Any]]:
        if stack not in self._lists:
            self._lists[stack] = [self._frames.setdefault(frame, frame._asdict()) for frame in stack]
        return self._lists[stack]


def _events(trace: Trace, frames_of: _FrameLists) -> Iterator[dict[str, Any]]:
    """Yield one dict an event, with the keys that PyTorch gives it."""
    actions = {int(action): action.name.lower() for action in Action}
    frames = [frames_of(stack) for stack in trace.stacks]

    @cache
    def metadata(moment: int, category: int, module: int, forward: int) -> str:
        return to_text(
            Metadata(trace.moments[moment], Category(category), trace.modules[module], trace.stacks[forward])
        )

    said = (trace.moment_id, trace.category, trace.module_id, trace.forward_stack_id)
    texts = map(metadata, *(column.tolist() for column in said))
    facts = (trace.action, trace.address, trace.size, trace.stream, trace.time_us, trace.stack_id, trace.pool_id)
    columns = zip(*(column.tolist() for column in facts), texts, strict=True)
    for action, address, size, stream, time_us, stack_id, pool_id, text in columns:
        address_key = "device_free" if action == Action.OOM else "addr"
        event: dict[str, Any] = {"action": actions[action], address_key: address, "size": size, "stream": stream}
        if time_us >= 0:
            event["time_us"] = time_us
        if pool_id:
            event["pool_id"] = trace.pools[pool_id]
        yield event | {"compile_context": "N/A", "user_metadata": text, "frames": frames[stack_id]}


def _segment(segment: Segment, frames_of: _FrameLists) -> dict[str, Any]:
    return {
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.total_size,
        "allocated_size": segment.allocated_size,
        "active_size": segment.active_size,
        "requested_size": segment.requested_size,
        "stream": segment.stream,
        "segment_type": segment.segment_type,
        "segment_pool_id": segment.pool_id,
        "is_expandable": segment.is_expandable,
        "frames": frames_of(segment.stack),
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_size,
                "state": block.state,
                "frames": frames_of(block.stack),
            }
            for block in segment.blocks
        ],
    }
