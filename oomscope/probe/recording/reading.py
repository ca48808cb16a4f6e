"""From what a recorded run left to a :class:`~oomscope.probe.measurement.Measurement`.

The same for a target that ran in a process of the probe and for a program that was started. No torch here: a process
that reads another's recording does not import it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from oomscope.allocator.settings import parse_version
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, FailedAllocation, Measurement
from oomscope.probe.recording.block_label import BlockLabel
from oomscope.probe.recording.categorise import categorise
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.infer.category_rules import CUBLAS_WORKSPACES
from oomscope.snapshot.read.build_snapshot import empty_trace
from oomscope.snapshot.sites import is_measuring
from oomscope.snapshot.trace import AFTER_BACKWARD, OTHER, Action, Moment, Segment, Snapshot, Stack, Trace
from oomscope.torch_versions import KEEPS_WORKSPACES, OLD_CONF_VARIABLE

_COUNTERS: Final = {
    "num_alloc_retries": "num_alloc_retries",
    "num_ooms": "num_ooms",
    **{f"{kind}_bytes_peak": f"{kind}_bytes.all.peak" for kind in ("allocated", "active", "reserved", "requested")},
    **{f"{kind}_bytes_current": f"{kind}_bytes.all.current" for kind in ("allocated", "requested")},
}
"""Fields of :class:`AllocatorStats` to counters of ``torch.cuda.memory_stats``."""


@dataclass(frozen=True, kw_only=True)
class RecordedRefusal:
    """The last request that the caching allocator refused; bytes."""

    requested_bytes: int
    free_bytes: int
    moment: Moment
    snapshot: Snapshot
    """Snapshot at that instant."""


def measurement_of(
    snapshot: Snapshot,
    budget: DeviceBudget,
    *,
    index: int,
    labels: Sequence[BlockLabel],
    allocations: int,
    workspaces: Collection[int],
    torch_version: str,
    stats: Mapping[str, Any],
    refusal: RecordedRefusal | None,
    max_entries: int,
) -> Measurement:
    """Return the facts of a run.

    Args:
        snapshot: as it stood at the end.
        budget: the card.
        index: the card's number.
        labels: what blocks were labelled as.
        allocations: blocks that the allocator had handed out at the end.
        workspaces: sizes that workspaces of cuBLAS have; empty where torch does not know them.
        torch_version: of the program.
        stats: ``torch.cuda.memory_stats`` at the end.
        refusal: the last request that was refused.
        max_entries: size of the ring.
    """
    snapshot = _without_own_frames(snapshot)
    recorded = (trace for trace in snapshot.traces if trace.device == index)
    trace = resolve_phases(next(recorded, None) or empty_trace(index))  # nothing was allocated there
    timeline = Timeline.of(trace, snapshot.segments)
    trace = categorise(
        timeline,
        labels,
        allocations=allocations,
        workspaces=workspaces or CUBLAS_WORKSPACES,
        keeps_workspaces=parse_version(torch_version) <= KEEPS_WORKSPACES,
    )
    truncated = len(trace) >= max_entries
    failed = None
    if refusal is not None:
        at_refusal = _without_own_frames(refusal.snapshot)
        event, stack, size = _last_oom(at_refusal, index)
        failed = FailedAllocation(
            requested_bytes=refusal.requested_bytes if size is None else size,
            message="",
            moment=resolved(refusal.moment, trace.moments),
            stack=stack,
            event=event if len(trace) > (event or 0) and not truncated else None,
            segments=tuple(segment for segment in at_refusal.segments if segment.device == index),
            device_free_bytes=refusal.free_bytes,
        )
    return Measurement(
        snapshot=replace(snapshot, traces=(trace,)),
        device=budget,
        stats=AllocatorStats(**{name: int(stats[key]) for name, key in _COUNTERS.items()}),
        oom=failed,
        truncated=truncated,
        allocator_conf=str(snapshot.allocator_settings.get(OLD_CONF_VARIABLE, "")),
    )


def resolve_phases(trace: Trace) -> Trace:
    """Return ``trace`` with the phase of each event that followed a backward pass: what came next tells it."""
    known = set(trace.moments)
    moments = [resolved(moment, known) for moment in trace.moments]
    number = {moment: index for index, moment in enumerate(dict.fromkeys(moments))}
    renumbered = np.array([number[moment] for moment in moments], dtype=np.int32)
    return replace(trace, moments=tuple(number), moment_id=renumbered[trace.moment_id])


def resolved(moment: Moment, moments: Collection[Moment]) -> Moment:
    """Return ``moment``, with its phase if it follows a backward pass; ``moments`` are those of the whole run.

    Its microbatch is the next one. If the next one has a forward, it lies between two microbatches. If the next one has
    only a backward, a further loss is computed. Otherwise the optimizer's step comes next.
    """
    phase, iteration, microbatch = moment
    if phase != AFTER_BACKWARD:
        return moment
    if Moment("forward", iteration, microbatch) in moments:
        return Moment(OTHER, iteration, -1)
    if Moment("backward", iteration, microbatch) in moments:
        return Moment("loss", iteration, microbatch)
    return Moment("optimizer", iteration, -1)


def _without_own_frames(snapshot: Snapshot) -> Snapshot:
    """Return ``snapshot`` without oomscope's frames, which stand where it replaces functions of torch."""

    @cache
    def stripped(stack: Stack) -> Stack:
        return tuple(frame for frame in stack if not is_measuring(frame))

    def without(segment: Segment) -> Segment:
        blocks = (replace(block, stack=stripped(block.stack)) if block.stack else block for block in segment.blocks)
        return replace(segment, blocks=tuple(blocks), stack=stripped(segment.stack))

    traces = (replace(trace, stacks=tuple(map(stripped, trace.stacks))) for trace in snapshot.traces)
    return replace(snapshot, traces=tuple(traces), segments=tuple(map(without, snapshot.segments)))


def _last_oom(snapshot: Snapshot, device: int) -> tuple[int | None, Stack, int | None]:
    """Return index, stack and requested bytes of the last ``oom`` event on ``device``; None where there is none."""
    for trace in snapshot.traces:
        events = (trace.action == Action.OOM).nonzero()[0]
        if trace.device == device and len(events):
            event = int(events[-1])
            stack = trace.attributed_stack(event)
            return event, stack, int(trace.size[event])
    return None, (), None
