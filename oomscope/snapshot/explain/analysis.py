"""What is derived of one device of a snapshot, each thing once and only when it is asked for.

Beside what is inferred of it (:mod:`oomscope.snapshot.infer.inferred`): how well it can be replayed, what the
process could hold, and the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from oomscope.errors import UsageError
from oomscope.snapshot.accounting.idle_before import idle_before
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.composition import Describe, Describer, composition_at
from oomscope.snapshot.infer.annotated import annotated_ends
from oomscope.snapshot.infer.inferred import Inferred
from oomscope.snapshot.judge.headline import Refused, headroom_headline, headroom_without_card, on_another_card
from oomscope.snapshot.judge.rest_of_iteration import rest_of_iteration
from oomscope.snapshot.judge.verdict import FailedRequest, ending_failure, judge
from oomscope.snapshot.replay.budget import Budget, budget_of, last_failure
from oomscope.snapshot.replay.recording import Recording, recording_of
from oomscope.snapshot.replay.replay import Device, replay
from oomscope.snapshot.replay.segment_map import SegmentMap, part_of, segments_after
from oomscope.snapshot.trace import Action, Segment, Snapshot, Trace
from oomscope.snapshot.verdict_types import RestOfIteration, Verdict


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """A recording that ends at the allocation that another card refuses."""

    trace: Trace
    """The events up to the failure, which is an ``oom`` event in place of the allocation."""
    segments: tuple[Segment, ...]
    """The recorded segments right before it."""
    failure: FailedRequest
    """The failed request, with the segments as they are on that card."""


def cut_short_on(device: Device, timeline: Timeline, recording: Recording) -> CutShort | None:
    """Return the recording up to its failure on another card, where its own allocations are replayed to see.

    The job is then judged as if its recording had ended at that allocation. One that failed when recorded is asked for
    again: on a larger card it may be served.

    None where nothing fails there, where not even what was alive before the recording fits, and where the segments of
    that moment cannot be recovered.
    """
    settings = recording.rules.settings()
    outcome = replay(recording.requests, settings, device, at_recorded_addresses=True)
    event = outcome.failed_event
    if event is None or event < 0:
        return None
    before = segments_after(timeline, event - 1, settings)
    if not before.is_known:
        return None
    trace = part_of(timeline.trace, slice(0, event + 1))
    action = trace.action.copy()
    action[event] = Action.OOM
    return CutShort(
        trace=replace(trace, action=action),
        segments=before.segments,
        failure=FailedRequest(
            requested_bytes=int(trace.size[event]),
            event=event,
            stream=int(trace.stream[event]),
            segments=outcome.segments,
        ),
    )


def analyse(
    snapshot: Snapshot,
    *,
    file: str,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
) -> tuple[Analysis, ...]:
    """Return an analysis of each device.

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
class Analysis(Inferred):
    """One device of the snapshot, with its replay and its verdict beside what is inferred."""

    torch_version: str | None
    limit: int | None
    non_torch: int

    @cached_property
    def recording(self) -> Recording:
        """The recording, with the rules of its allocator and how well they repeat it."""
        return recording_of(self.snapshot, self.bare, self.torch_version)

    @cached_property
    def budget(self) -> Budget:
        """The budget: what the process could hold."""
        if self.limit is None:
            return self.recording.budget
        settings = self.recording.rules.settings()
        return budget_of(self.snapshot, self.bare, settings, limit=self.limit, non_torch=self.non_torch)

    @cached_property
    def verdict(self) -> Verdict:
        """Why it failed, or what room it has."""
        timeline, short = self.timeline, self.cut_short
        failure = short.failure if short else self._recorded_failure() if self.limit is None else None
        verdict = judge(
            Timeline(short.trace, short.segments) if short else timeline,
            self.budget.device,
            rules=self.recording.rules,
            failure=failure,
            demand_after=timeline.most_held_bytes if short else None,
            rest=None if short else self._rest_after(failure),
            whole=self.recording.requests if short else None,
            requests=None if short else self.recording.requests,
            baseline=self.recording.baseline if self.limit is None else None,
            is_repeated=self.recording.fidelity.is_trusted,
        )
        failed = verdict.kind != "headroom"
        categories = composition_at(timeline, self.last_event(verdict), self.evidence, held=failed).categories
        verdict = replace(verdict, categories={row.category: row.bytes for row in categories})
        return verdict if failed else self._without_failure(verdict)

    def _rest_after(self, failure: FailedRequest | None) -> RestOfIteration | None:
        """Return what the last whole iteration shows of the rest of the one that failed."""
        if failure is None or failure.event is None:
            return None
        ends = self.iterations.ends  # one step alone shows a first iteration, but no more
        if not len(self.iterations):
            ends = annotated_ends(self.timeline.trace, self.snapshot.annotations).ends
        return rest_of_iteration(self.timeline, ends, self.evidence.category, failure.event)

    def _recorded_failure(self) -> FailedRequest | None:
        """Return the allocation at which the recorded job ended, and whether a fraction refused it."""
        failure = ending_failure(self.recorded)
        budget = self.budget
        return failure and replace(
            failure, by_fraction=budget.by_fraction, available_is_bound=budget.available_is_bound
        )

    def _without_failure(self, verdict: Verdict) -> Verdict:
        """Return a verdict of headroom with what is known of the card, and without what could not be tried."""
        highest, available = self.timeline.reserved_peak(), self.budget.available_bytes
        is_replayed = self.records_allocations and self.recording.fidelity.is_trusted
        if self.budget.available_is_bound and available is not None:
            verdict = replace(verdict, available_bytes=available, available_is_bound=True)
        if verdict.available_is_bound or not is_replayed:
            verdict = replace(verdict, tried=verdict.tried if is_replayed else ())
            verdict = replace(verdict, headline=headroom_headline(verdict, highest))
        if available is None:
            when = "at the end" if self.shows_end_only else "at the peak"
            return replace(verdict, headline=headroom_without_card(verdict, highest, when=when))
        return (
            verdict
            if self.limit is None
            else on_another_card(
                verdict,
                highest,
                self._refused,
                reserved_before=self.bare.initial_reserved_bytes if idle_before(self.bare) else 0,
            )
        )

    @property
    def survived_failures(self) -> int:
        """How many allocations failed in the recorded job without ending it."""
        return int((self.recorded.action == Action.OOM).sum()) if ending_failure(self.recorded) is None else 0

    @cached_property
    def _refused(self) -> Refused | None:
        """What the recorded card refused last."""
        event = last_failure(self.recorded)
        if event is None:
            return None
        live = self.timeline.held_bytes_at(event)
        cards = self.snapshot.provenance.cards if self.snapshot.provenance else ()
        totals = (card.total_bytes for card in cards if card.index == self.recorded.device and card.total_bytes > 0)
        available = self.recording.budget.available_bytes
        return Refused(int(self.recorded.size[event]), live, available, next(totals, None))

    @property
    def served(self) -> Refused | None:
        """What the recorded job ended at, where a replay on the card that the user names serves it."""
        is_served = self.limit is not None and self.verdict.kind == "headroom" and self.verdict.tried
        return self._refused if is_served and not self.survived_failures else None

    def last_event(self, verdict: Verdict) -> int:
        """Return the event that a verdict is of: the peak, or the last one before the failure."""
        if verdict.kind == "headroom" or verdict.event is None:
            return self.timeline.peak_event()
        return verdict.event - 1

    @cached_property
    def records_allocations(self) -> bool:
        """Whether there is anything to replay."""
        return bool((self.recorded.action == Action.ALLOC).any())

    @cached_property
    def shows_end_only(self) -> bool:
        """Whether nothing was allocated or freed while it was recorded; it may show a failure beside the end."""
        known = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        return not np.isin(self.recorded.action, known).any()

    @cached_property
    def cut_short(self) -> CutShort | None:
        """The recording up to where the card that the user names refuses an allocation.

        None where nothing fails, and where replays do not repeat the recording, so that it is not known.
        """
        if self.limit is None or not self.recording.fidelity.is_trusted:
            return None
        return cut_short_on(self.budget.device, self.timeline, self.recording)

    @cached_property
    def describe(self) -> Describe:
        """Returns the allocating line and the category of a block."""
        return Describer(self.timeline, self.evidence)

    @cached_property
    def at_peak(self) -> SegmentMap:
        """Segments and blocks at the peak of requested bytes."""
        return self.segments_after(self.timeline.peak_event())

    @cached_property
    def of_interest(self) -> SegmentMap:
        """Segments and blocks at the failed allocation of the recorded card, else at the peak."""
        failed = None if self.cut_short is not None else self.failure_event
        return self.at_peak if failed is None else self.segments_after(failed)

    def segments_after(self, event: int) -> SegmentMap:
        """Return segments and blocks right after ``event``."""
        return segments_after(self.timeline, event, self.recording.rules.settings())

    @property
    def failure_event(self) -> int | None:
        """The event of the failed allocation; None where none failed."""
        return None if self.verdict.kind == "headroom" else self.verdict.event
