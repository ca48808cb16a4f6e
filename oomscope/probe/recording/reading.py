"""From what a recorded run left to a :class:`~oomscope.probe.measurement.Measurement`.

The same for a target that ran in a process of the probe and for a program that was started. No torch here: who reads
what another process recorded does not import it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomscope.probe.measurement import AllocatorStats, DeviceBudget, FailedAllocation, Measurement
from oomscope.probe.recording.categorise import Told, categorise
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Moment, Snapshot, Stack


@dataclass(frozen=True, kw_only=True)
class RecordedRefusal:
    """The last request that the caching allocator refused; bytes."""

    requested_bytes: int
    free_bytes: int
    moment: Moment
    snapshot: Snapshot
    """As it stood at that instant."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What one run left."""

    snapshot: Snapshot
    """As it stood at the end."""
    index: int
    """The device."""
    told: tuple[Told, ...]
    """What was said of blocks."""
    allocations: int
    """Blocks that the allocator had handed out at the end."""
    workspaces: Collection[int]
    """Sizes that workspaces of cuBLAS have."""
    stats: Mapping[str, Any]
    """``torch.cuda.memory_stats`` at the end."""
    refusal: RecordedRefusal | None
    max_entries: int
    """Size of the ring."""

    def measurement(self, budget: DeviceBudget) -> Measurement:
        """Return the facts of the run on the card ``budget``."""
        snapshot = self.snapshot
        recorded = (trace for trace in snapshot.traces if trace.device == self.index)
        trace = next(recorded, None) or TraceBuilder(self.index).build()  # a run that only counted
        trace = categorise(
            Timeline.of(trace, snapshot.segments), self.told, allocations=self.allocations, workspaces=self.workspaces
        )
        truncated = len(trace) >= self.max_entries
        return Measurement(
            snapshot=replace(snapshot, traces=(trace,)),
            device=budget,
            stats=stats_of(self.stats),
            oom=self._failed(truncated=truncated),
            truncated=truncated,
            allocator_conf=str(snapshot.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF", "")),
        )

    def _failed(self, *, truncated: bool) -> FailedAllocation | None:
        refusal, index = self.refusal, self.index
        if refusal is None:
            return None
        event, stack, size = last_oom(refusal.snapshot, index)
        kept = any(trace.device == index and len(trace) > (event or 0) for trace in self.snapshot.traces)
        return FailedAllocation(
            requested_bytes=refusal.requested_bytes if size is None else size,
            message="",
            moment=refusal.moment,
            stack=stack,
            event=event if kept and not truncated else None,
            segments=tuple(segment for segment in refusal.snapshot.segments if segment.device == index),
            device_free_bytes=refusal.free_bytes,
        )


def stats_of(stats: Mapping[str, Any]) -> AllocatorStats:
    """Return the counters of ``torch.cuda.memory_stats`` that are reported."""
    return AllocatorStats(
        allocated_bytes_peak=int(stats["allocated_bytes.all.peak"]),
        active_bytes_peak=int(stats["active_bytes.all.peak"]),
        reserved_bytes_peak=int(stats["reserved_bytes.all.peak"]),
        requested_bytes_peak=int(stats["requested_bytes.all.peak"]),
        reserved_bytes_current=int(stats["reserved_bytes.all.current"]),
        requested_bytes_current=int(stats["requested_bytes.all.current"]),
        allocated_bytes_current=int(stats["allocated_bytes.all.current"]),
        num_alloc_retries=int(stats["num_alloc_retries"]),
        num_ooms=int(stats["num_ooms"]),
    )


def last_oom(snapshot: Snapshot, device: int) -> tuple[int | None, Stack, int | None]:
    """Return index, stack and requested bytes of the last ``oom`` event on ``device``; None where there is none."""
    for trace in snapshot.traces:
        events = (trace.action == Action.OOM).nonzero()[0]
        if trace.device == device and len(events):
            event = int(events[-1])
            stack = trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]]
            return event, stack, int(trace.size[event])
    return None, (), None
