"""One recorded run on a real GPU: the allocator's own history, the driver's account of the card, and the clock.

Nothing runs under a dispatch mode, so what is measured is what training does. A smaller card is played by the
allocator's memory fraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from oomscope.capture import history
from oomscope.capture.history import Refusal
from oomscope.errors import MachineUnfitError
from oomscope.probe.cuda_observer import CudaObserver
from oomscope.probe.measurement import AllocatorStats, DeviceBudget, FailedAllocation, Measurement
from oomscope.probe.nvml import CardMemory, read_card
from oomscope.probe.roles import categorise
from oomscope.probe.session import Modules, Optimizers, SessionSettings, listed
from oomscope.snapshot.reading.schema import snapshot_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Moment, Snapshot, Stack
from oomscope.units import MiB, format_size

_NOISE = 16 * MiB
"""Changes of memory outside the allocator up to this are not worth a word."""


class CudaSession:
    """A :class:`~oomscope.probe.session.Session` on the current CUDA device. Use it once, in a fresh process.

    Args:
        settings: the limit, or the card whose total is the limit; the rest of the card is what is there.

    Raises:
        MachineUnfitError: a run without a limit was asked for, or a card larger than the one that is there.
    """

    def __init__(self, settings: SessionSettings) -> None:
        if settings.unlimited:
            raise MachineUnfitError("a card without a limit can only be simulated", remedy="use --backend sim")
        self._settings = settings
        self._index = torch.cuda.current_device()
        self.device = torch.device("cuda", self._index)
        self._properties = torch.cuda.get_device_properties(self._index)
        self._uuid = str(self._properties.uuid)
        self.observer = CudaObserver(history.mark if history.can_mark() else None)
        self._failure: tuple[Refusal, Moment, Any] | None = None
        self._steps: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._open = ExitStack()
        self._notes: list[str] = []
        if not history.can_mark():
            self._notes.append("this torch cannot mark allocations, so phases are unknown")

    def __enter__(self) -> Self:
        """Weigh the card, set the limit and start to record."""
        self._budget = self._weigh()
        if self._budget.fraction is not None:
            torch.cuda.memory.set_per_process_memory_fraction(self._budget.fraction, self._index)
        torch.cuda.memory.reset_peak_memory_stats(self._index)
        history.start(max_entries=self._settings.max_entries)
        self._open.enter_context(history.refusals.heard_by(self._out_of_memory))
        # One thread runs forward and backward, so that stacks recorded in backward hold the caller.
        self._open.enter_context(torch.autograd.set_multithreading_enabled(False))
        self._open.enter_context(self.observer.following())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Stop to record. Errors pass through."""
        self._document = history.document()
        history.stop()
        self._open.close()
        self._stats = torch.cuda.memory_stats(self._index)
        self._pinned = int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
        reserved = int(self._stats["reserved_bytes.all.current"])
        self._notes.extend(unseen_change(self._before, read_card(self._uuid), reserved))
        if self._budget.fraction is not None:
            torch.cuda.memory.set_per_process_memory_fraction(1.0, self._index)

    @contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """Mark what runs inside as iteration ``index`` and time it on the device."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.observer.phase("forward", iteration=index, microbatch=-1):
            start.record()
            yield
            end.record()
        end.synchronize()
        self._steps.append((start, end))

    def watch(self, model: Modules, optimizer: Optimizers) -> None:
        """Tell parameters, gradients and optimizer states of the target."""
        self.observer.watch(listed(model), listed(optimizer))

    def measurement(self) -> Measurement:
        """Return what was recorded."""
        snapshot = snapshot_of(self._document, where="torch.cuda.memory._snapshot()")
        trace = next(trace for trace in snapshot.traces if trace.device == self._index)
        trace = categorise(Timeline.of(trace, snapshot.segments), self.observer.told)
        truncated = len(trace) >= self._settings.max_entries
        major, minor = torch.cuda.get_device_capability(self._index)
        return Measurement(
            snapshot=replace(snapshot, traces=(trace,)),
            device=self._budget,
            stats=stats_of(self._stats),
            oom=self._failed(snapshot, truncated),
            pinned_bytes=self._pinned,
            truncated=truncated,
            step_times_s=tuple(start.elapsed_time(end) / 1000 for start, end in self._steps),
            allocator_conf=self._settings.allocator_conf,
            versions={
                "cuda": str(torch.version.cuda),
                "driver": self._before.driver_version,
                "gpu": self._properties.name,
                "capability": f"{major}.{minor}",
            },
            notes=tuple(self._notes),
        )

    def _weigh(self) -> DeviceBudget:
        """Measure what others hold, then what a context of our own costs, and set the card's size."""
        before = read_card(self._uuid)
        torch.cuda.synchronize(self._index)
        self._before = read_card(self._uuid)
        gpu, total = self._settings.gpu, int(self._properties.total_memory)
        limit = self._settings.limit_bytes or (gpu.total_bytes if gpu else total)
        if limit > total:
            raise MachineUnfitError(
                f"{self._properties.name} has {format_size(total)}, less than the {format_size(limit)} asked for",
                where="--limit" if self._settings.limit_bytes else "--gpu",
                remedy="ask for less, or use --backend sim",
            )
        budget = DeviceBudget(
            gpu=str(self._properties.name),
            limit_bytes=limit,
            non_torch_bytes=max(0, self._before.used_bytes - before.used_bytes),
            other_process_bytes=before.used_bytes,
        )
        if budget.available_bytes == 0:
            raise MachineUnfitError(
                f"other processes hold {format_size(before.used_bytes)} of the card, which leaves nothing",
                where=budget.gpu,
                remedy="end them or use another card",
            )
        if limit == total and not self._settings.limit_bytes:
            return budget
        return replace(budget, card_bytes=total, fraction=fraction_for(budget.available_bytes, total))

    def _out_of_memory(self, refusal: Refusal) -> None:
        """Keep the segments as they stand; torch says this at the failing allocation, before it raises."""
        if refusal.device == self._index:
            self._failure = (refusal, self.observer.moment, history.document())

    def _failed(self, final: Snapshot, truncated: bool) -> FailedAllocation | None:
        if self._failure is None:
            return None
        refusal, moment, document = self._failure
        then = snapshot_of(document, where="torch.cuda.memory._snapshot() at the failure")
        event, stack = last_oom(then, self._index)
        kept = any(trace.device == self._index and len(trace) > (event or 0) for trace in final.traces)
        return FailedAllocation(
            requested_bytes=refusal.requested_bytes,
            message=f"CUDA out of memory. Tried to allocate {format_size(refusal.requested_bytes)}.",
            moment=moment,
            stack=stack,
            event=event if kept and not truncated else None,
            segments=tuple(segment for segment in then.segments if segment.device == self._index),
            device_free_bytes=refusal.free_bytes,
        )


def fraction_for(available_bytes: int, total_bytes: int) -> float:
    """Return the fraction under which torch allows exactly ``available_bytes`` of a card with ``total_bytes``.

    torch computes ``size_t(fraction * total)`` (CUDACachingAllocator.cpp, ``setMemoryFraction``) and takes 1.0 for
    no limit at all.
    """
    fraction = available_bytes / total_bytes
    while int(fraction * total_bytes) < available_bytes:
        fraction = math.nextafter(fraction, math.inf)
    return min(fraction, 1.0)


def stats_of(stats: dict[str, Any]) -> AllocatorStats:
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


def last_oom(snapshot: Snapshot, device: int) -> tuple[int | None, Stack]:
    """Return the index and stack of the last ``oom`` event on ``device``; None and nothing where there is none."""
    for trace in snapshot.traces:
        events = (trace.action == Action.OOM).nonzero()[0]
        if trace.device == device and len(events):
            event = int(events[-1])
            return event, trace.stacks[trace.stack_id[event]]
    return None, ()


def unseen_change(before: CardMemory, after: CardMemory, reserved_bytes: int) -> Iterator[str]:
    """Yield a note where memory outside the allocator grew or shrank while the target ran.

    Args:
        before: the card when recording began and the allocator held nothing.
        after: the card when it ended.
        reserved_bytes: what the allocator held then.
    """
    change = after.used_bytes - reserved_bytes - before.used_bytes
    if abs(change) > _NOISE:
        yield (
            f"memory of the card outside the allocator changed by {format_size(change, signed=True)} during the run "
            "(libraries of this process, or other processes)"
        )
