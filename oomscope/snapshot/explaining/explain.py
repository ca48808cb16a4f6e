"""Explain a snapshot of anybody's: why it ran out of memory or what room it has, and what its bytes are.

Nothing here is specific to a source of snapshots: categories, phases and iterations come from the recording where it
has them and from evidence where it does not, and what the file cannot tell is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from oomscope.errors import UsageError
from oomscope.snapshot.explaining.composition import Describer, composition_at
from oomscope.snapshot.explaining.curves import curves_of
from oomscope.snapshot.explaining.doing import Activity, activity_of
from oomscope.snapshot.explaining.evidence import Evidence, categorise
from oomscope.snapshot.explaining.explanation import (
    DeviceExplanation,
    Explanation,
    Instant,
    IterationsFound,
    PendingBytes,
    Place,
    PoolBytes,
)
from oomscope.snapshot.explaining.inferred import with_moments
from oomscope.snapshot.explaining.iterations import Iterations, iterations_of
from oomscope.snapshot.explaining.pins import Pins, pins_of
from oomscope.snapshot.explaining.suspects import suspects_of
from oomscope.snapshot.judging.headline import headroom_headline
from oomscope.snapshot.judging.headroom import headroom_without_card, on_another_card
from oomscope.snapshot.judging.smaller_card import CutShort, cut_short_on
from oomscope.snapshot.judging.verdict import FailedRequest, failure_of, judge
from oomscope.snapshot.replaying.budget import Budget, budget_of
from oomscope.snapshot.replaying.recording import Recording, recording_of
from oomscope.snapshot.replaying.segment_map import SegmentMap, segments_after
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Segment, Snapshot, Trace
from oomscope.snapshot.verdict_types import Verdict


def explain(
    snapshot: Snapshot,
    *,
    file: str,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
) -> Explanation:
    """Return what a snapshot tells.

    Args and errors are those of :func:`analyse`; it is ``file`` that the report names.
    """
    found = analyse(
        snapshot,
        file=file,
        device=device,
        limit=limit,
        non_torch=non_torch,
        torch_version=torch_version,
    )
    return explanation_of(snapshot, found, file=file)


def explanation_of(snapshot: Snapshot, found: tuple[Analysis, ...], *, file: str) -> Explanation:
    """Return what the analyses of a snapshot's devices tell."""
    rank = snapshot.provenance.rank if snapshot.provenance and snapshot.provenance.rank >= 0 else None
    return Explanation(file=file, devices=tuple(each.explained() for each in found), rank=rank)


def analyse(
    snapshot: Snapshot,
    *,
    file: str,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
) -> tuple[Analysis, ...]:
    """Return an analysis of each device, which derives what it is asked for.

    Args:
        snapshot: the file, read.
        file: its name, for errors.
        device: index of the one device to explain; None: all that have events or memory.
        limit: bytes of a card in all; None: what the file tells.
        non_torch: bytes of that card that the process held outside PyTorch.
        torch_version: whose allocator's rules count; None: what the file tells, else those that repeat the trace best.

    Raises:
        UsageError: the file knows no such device.
        AllocatorConfError: the recorded allocator settings have no rules here.
    """
    known = [trace.device for trace in snapshot.traces]
    if device is not None and device not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise UsageError(f"{file} has nothing on device {device}", remedy=f"it knows these devices: {listed}")
    return tuple(
        Analysis(snapshot, trace, torch_version, limit, non_torch)
        for trace in snapshot.traces
        if device is None or trace.device == device
    )


@dataclass(frozen=True)
class Analysis:
    """One device of the snapshot, and what is derived of it."""

    snapshot: Snapshot
    recorded: Trace
    torch_version: str | None
    limit: int | None
    non_torch: int

    @cached_property
    def activity(self) -> Activity:
        """What the program did at each event."""
        return activity_of(self.bare, self.snapshot.annotations)

    @cached_property
    def bare(self) -> Timeline:
        """The curves as recorded."""
        return Timeline.of(self.recorded, self.snapshot.segments)

    @cached_property
    def iterations(self) -> Iterations:
        """Where iterations end."""
        return iterations_of(self.bare, self.activity, self.snapshot.annotations)

    @cached_property
    def timeline(self) -> Timeline:
        """The curves, with moments told by evidence where the recording has none."""
        return replace(self.bare, trace=with_moments(self.recorded, self.activity, self.iterations))

    @cached_property
    def evidence(self) -> Evidence:
        """What each block is for."""
        return categorise(self.bare, self.snapshot.annotations)

    @cached_property
    def recording(self) -> Recording:
        """By whose rules it was recorded, and how well these repeat it."""
        return recording_of(self.snapshot, self.bare, self.torch_version)

    @cached_property
    def budget(self) -> Budget:
        """What the process could hold."""
        if self.limit is None:
            return self.recording.budget
        settings = self.recording.rules.settings()
        return budget_of(self.snapshot, self.bare, settings, limit=self.limit, non_torch=self.non_torch)

    @cached_property
    def verdict(self) -> Verdict:
        """Why it failed, or what room it has."""
        timeline, short = self.timeline, self.cut_short
        verdict = judge(
            short.trace if short else timeline.trace,
            self.budget.device,
            rules=self.recording.rules,
            segments=short.segments if short else timeline.segments,
            failure=short.failure if short else self._recorded_failure(),
            demand_after=int(timeline.live.max(initial=0)) if short else None,
            whole=self.recording.requests if short else None,
            baseline=self.recording.baseline if self.limit is None else None,
        )
        categories = composition_at(timeline, self._last(verdict), self.evidence).categories
        verdict = replace(verdict, categories={row.category: row.bytes for row in categories})
        return self._without_failure(verdict) if verdict.kind == "headroom" else verdict

    def _recorded_failure(self) -> FailedRequest | None:
        """Return the allocation that failed in the recorded job, and whether a fraction refused it."""
        failure = failure_of(self.recorded)
        return failure and replace(failure, by_fraction=self.budget.is_upper_bound)

    def _without_failure(self, verdict: Verdict) -> Verdict:
        """Return a verdict of headroom with what is known of the card, and without what could not be tried."""
        highest = self.timeline.reserved_peak()
        if not self.records_allocations or not self.recording.fidelity.is_trusted:
            verdict = replace(verdict, fixes=())
            verdict = replace(verdict, headline=headroom_headline(verdict, highest))
        if self.budget.available_bytes is None:
            when = "at the peak" if self.records_allocations else "at the end"
            return replace(verdict, headline=headroom_without_card(verdict, highest, when=when))
        return verdict if self.limit is None else on_another_card(verdict, highest)

    def _last(self, verdict: Verdict) -> int:
        """Return the event that a verdict is of: the peak, or the last one before the failure."""
        if verdict.kind == "headroom" or verdict.event is None:
            return self.timeline.peak_event()
        return verdict.event - 1

    @cached_property
    def records_allocations(self) -> bool:
        """Whether there is anything to replay; else the file shows the end, or the failure, only."""
        return bool((self.recorded.action == Action.ALLOC).any())

    @cached_property
    def cut_short(self) -> CutShort | None:
        """The recording up to where the card that the user names refuses an allocation; None where nothing fails."""
        if self.limit is None or failure_of(self.recorded) is not None:
            return None
        return cut_short_on(self.budget.device, self.timeline, self.recording)

    def explained(self) -> DeviceExplanation:
        """Return all that is known of the device."""
        timeline, trace = self.timeline, self.timeline.trace
        event = timeline.peak_event()
        describe = self.describe
        at_peak, at_failure = self.at_peak, self.at_failure
        failed = self.failure_event is not None
        failure = composition_at(timeline, self._last(self.verdict), self.evidence) if failed else None
        return DeviceExplanation(
            index=trace.device,
            events=len(trace),
            truncated="start" in trace.missing,
            torch_version=self.recording.rules.torch_version,
            version_source=self.recording.version_source,
            conf=self.recording.rules.conf,
            fidelity=self.recording.fidelity.share if self.recording.fidelity.shows_something else None,
            shows_end_only=not self.records_allocations and not failed,
            available_bytes=self.budget.available_bytes,
            available_source=self.budget.source,
            peak=_instant(timeline, at_peak),
            place=_place_of_block(timeline, event, describe),
            end=_instant(timeline, self._segments_after(len(trace) - 1)),
            verdict=self.verdict,
            composition=composition_at(timeline, event, self.evidence),
            pins=self._pins(at_failure or at_peak),
            failure=failure,
            is_predicted=self.cut_short is not None,
            failed_at=None if self.failure_event is None else _place_of_failure(timeline, self.failure_event, describe),
            pending=tuple(_pending(timeline, event, describe)),
            pools=tuple(_pools(timeline)),
            iterations=IterationsFound(
                count=len(self.iterations), source=self.iterations.source, confidence=self.iterations.confidence.label
            ),
            suspects=suspects_of(timeline, self.iterations),
            curves=curves_of(timeline, self.evidence),
            missing=trace.missing,
            reconciliation=timeline.reconcile(),
            caveats=tuple(self._caveats(at_peak)),
        )

    @cached_property
    def describe(self) -> Describer:
        """Says by which line a block was made and what it is for."""
        return Describer(self.timeline, self.evidence)

    @cached_property
    def at_peak(self) -> SegmentMap:
        """Segments and blocks at the peak of live bytes."""
        return self._segments_after(self.timeline.peak_event())

    @cached_property
    def at_failure(self) -> SegmentMap | None:
        """Segments and blocks at the failed allocation; None where none failed on the recorded card."""
        if self.failure_event is None or self.cut_short is not None:
            return None
        return self._segments_after(self.failure_event)

    def _pins(self, here: SegmentMap) -> Pins | None:
        """Return what pins segments; on a smaller card they would lie otherwise, and it is not told."""
        return pins_of(self.timeline, here, self.describe) if here.is_known and self.cut_short is None else None

    def _segments_after(self, event: int) -> SegmentMap:
        return segments_after(self.timeline, event, self.recording.rules.settings())

    @cached_property
    def failure_event(self) -> int | None:
        """The event of the failed allocation; None where none failed."""
        return None if self.verdict.kind == "headroom" else self.verdict.event

    def _caveats(self, at_peak: SegmentMap) -> Iterator[str]:
        """Yield what the file cannot tell, and what follows from that."""
        trace, reconciliation = self.timeline.trace, self.timeline.reconcile()
        if not self.records_allocations and failure_of(trace) is None:
            yield "the file records no allocation: it shows the end only, and nothing can be replayed"
        elif not self.records_allocations:
            yield "the file records no allocation but the failed one: only that is replayed, on the memory held then"
        elif "start" in trace.missing:
            yield "the recording began after memory had been allocated: what was alive then has no allocation event"
        if self.records_allocations and not self.recording.fidelity.is_trusted:
            doubted = (
                "no other settings are compared"
                if self.verdict.kind == "headroom"
                else "what is said of settings and of another card may be off by as much"
            )
            yield f"the replay does not repeat this recording ({self.recording.fidelity.share:.1%}): {doubted}"
        if self.records_allocations and "frames" in trace.missing:
            yield "the events have no stacks: their lines are unknown, and categories rest on lifetimes alone"
        yield from _of_failures(trace)
        if self.recording.settings_doubt:
            yield self.recording.settings_doubt
        if trace.unknown_actions:
            kinds = (" ".join(name.split()) for name in trace.unknown_actions)
            yield f"events of unknown kinds are left out: {', '.join(kinds)}"
        if not at_peak.is_known:
            yield f"the segments at the peak are unknown: {'; '.join(at_peak.doubts)}"
        yield from (f"the file is not of one piece: {reason}" for reason in reconciliation.reasons)


def _of_failures(trace: Trace) -> Iterator[str]:
    """Yield that more than one allocation failed, and that the program went on."""
    failed = np.flatnonzero(trace.action == Action.OOM)
    if len(failed) > 1:
        yield f"{len(failed):,} allocations failed; the verdict is of the last one, at event {failed[-1]:,}"
    if len(failed) and (trace.action[failed[-1] :] == Action.ALLOC).any():
        yield "the program went on to allocate after that failure: it did not end the job at once"


def _instant(timeline: Timeline, here: SegmentMap) -> Instant:
    reserved = int(timeline.reserved[here.event]) if here.event >= 0 else here.reserved_bytes
    return Instant(
        event=here.event,
        requested_bytes=timeline.live_bytes_at(here.event),
        allocated_bytes=here.allocated_bytes if here.is_known else None,
        active_bytes=here.active_bytes if here.is_known else None,
        reserved_bytes=reserved,
        is_exact=here.is_exact,
    )


def _place_of_block(timeline: Timeline, event: int, describe: Describer) -> Place:
    """Return where the program was at ``event``, and which line allocated what; nothing where it allocated nothing."""
    row = np.flatnonzero(timeline.lifetimes.born == event)
    if event < 0 or not len(row):
        return Place(phase="", iteration=-1, site=None, category="")
    moment = timeline.trace.moments[timeline.trace.moment_id[event]]
    site, category = describe(int(row[0]))
    return Place(phase=moment.phase, iteration=moment.iteration, site=site, category=category)


def _place_of_failure(timeline: Timeline, event: int, describe: Describer) -> Place:
    """Return where the program was when it asked in vain, or on a smaller card would have."""
    moment = timeline.trace.moments[timeline.trace.moment_id[event]]
    row = np.flatnonzero(timeline.lifetimes.born == event)
    asked = site_of(timeline.trace.stacks[timeline.trace.stack_id[event]])
    site, category = describe(int(row[0])) if len(row) else (asked, "")
    return Place(phase=moment.phase, iteration=moment.iteration, site=site, category=category)


def _pending(timeline: Timeline, event: int, describe: Describer) -> Iterator[PendingBytes]:
    """Yield blocks that wait for a stream right after ``event``, by line, largest first."""
    table = timeline.lifetimes
    found: dict[tuple[Site, int], list[int]] = {}
    for row in table.pending_at(event).tolist():
        found.setdefault((describe(row)[0], int(table.stream[row])), []).append(int(table.size[row]))
    for (site, stream), sizes in sorted(found.items(), key=lambda item: -sum(item[1])):
        yield PendingBytes(site=site, stream=stream, bytes=sum(sizes), count=len(sizes))


def _pools(timeline: Timeline) -> Iterator[PoolBytes]:
    """Yield the private pools at the end."""
    of_pool: defaultdict[tuple[int, int], list[Segment]] = defaultdict(list)
    for segment in timeline.segments or ():
        of_pool[segment.pool_id].append(segment)
    for pool_id, own in sorted(of_pool.items()):
        if pool_id == (0, 0):
            continue
        yield PoolBytes(
            pool_id=pool_id,
            segments=len(own),
            reserved_bytes=sum(segment.total_size for segment in own),
            active_bytes=sum(segment.active_size for segment in own),
        )
