"""Judge a run: capacity or fragmentation, cured by what, and where the missing bytes sit.

R is the request that failed, A the requested bytes of all live blocks then, D what this process may use. A + R > D is
capacity: no packing could serve the request. Otherwise the allocator failed although there was room, and the very
same requests are replayed under other settings to see which of them pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from oomscope.allocator.alloc_conf import EXPANDABLE
from oomscope.snapshot.accounting.attribution import SiteOf, by_category
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.judge.headline import elsewhere_headline, headline_of, headroom_headline
from oomscope.snapshot.judge.leaks import find_leak
from oomscope.snapshot.replay.budget import last_failure
from oomscope.snapshot.replay.fixes import Rules, Tried, try_settings
from oomscope.snapshot.replay.gaps import gaps_of, request_as_seen
from oomscope.snapshot.replay.initial_state import recover
from oomscope.snapshot.replay.pools import PoolId
from oomscope.snapshot.replay.replay import Device, Replay, replay
from oomscope.snapshot.replay.requests import Last, Requests, requests_of
from oomscope.snapshot.sites import site_of
from oomscope.snapshot.trace import DEFAULT_POOL, NEUTRAL, Action, Segment, Trace
from oomscope.snapshot.verdict_types import FailedIn, Gap, LeakSuspect, RestOfIteration, Tag, Verdict, VerdictKind

_CANDIDATES: Final = (EXPANDABLE,)
"""Settings tried where nothing failed: the one that comes nearest to no overhead."""


@dataclass(frozen=True, kw_only=True)
class FailedRequest:
    """The allocation that the caching allocator refused, as it was seen."""

    requested_bytes: int
    """R, in bytes."""
    event: int | None = None
    """Index of the ``oom`` event; None where the trace has none: then the failure is where the trace ends."""
    stream: int | None = None
    """The stream it was asked for on; None: the event's, or the default stream where there is none."""
    segments: tuple[Segment, ...] = ()
    """Segments as they stood at the failure; empty where nobody copied them."""
    by_fraction: bool = False
    """Whether a memory fraction refused it although the device had enough free."""
    available_is_bound: bool = False
    """Whether D is an upper bound, since the size of that fraction is not known."""


@dataclass(frozen=True, kw_only=True)
class FailedElsewhere:
    """A failure for lack of memory that the caching allocator had no part in; it ends the trace."""

    failed_in: FailedIn
    message: str = ""
    """The text of the error, in one line."""
    requested_bytes: int | None = None
    """R, in bytes; None where the error does not say."""


def judge(
    timeline: Timeline,
    device: Device,
    *,
    rules: Rules | None = None,
    failure: FailedRequest | FailedElsewhere | None = None,
    demand_after: int | None = None,
    rest: RestOfIteration | None = None,
    leak_after: LeakSuspect | None = None,
    whole: Requests | None = None,
    choose: SiteOf = site_of,
    requests: Requests | None = None,
    baseline: Replay | None = None,
    is_repeated: bool = True,
    ends_whole: bool = False,
    may_leak: bool = True,
) -> Verdict:
    """Return the verdict on a run.

    Args:
        timeline: the device's events, up to the failure, and beyond it where they go on; its segments at the end tell
            what was there before it began.
        device: the card as this process saw it.
        rules: the allocator's settings and version; None: the defaults.
        failure: what ended the run; None where it went through: then the headroom is stated. Only an allocation
            that the caching allocator refused is called capacity or fragmentation.
        demand_after: largest requested bytes of the same run without a limit, where that is known.
        rest: what the iteration that failed would still have needed, where a recording tells.
        leak_after: what grows in that run, or in a longer one than this, which may be too short to show it.
        whole: the requests of the recording, where it is known to go on past the failure: a setting cures what it
            serves to the end.
        choose: which line stands for a stack, where the verdict names one.
        requests: all of the timeline's, where they were read already.
        baseline: their replay under ``rules`` on ``device``, where it was made already.
        is_repeated: whether replays repeat the trace well enough to ask what would have been under other settings.
        ends_whole: whether a timeline without a failure ends after a whole iteration.
        may_leak: False where a longer run showed that what grows comes to an end.

    Raises:
        AllocatorConfError: the settings have no rules here.
    """
    case = _Case(timeline, device, rules or Rules(), choose, is_repeated, ends_whole, may_leak, leak_after)
    if failure is None:
        return case.headroom(requests, baseline)
    if isinstance(failure, FailedElsewhere):
        return case.elsewhere(failure)
    event = len(timeline.trace) if failure.event is None else failure.event
    asked_on = 0 if failure.event is None else int(timeline.trace.stream[event])
    stream = asked_on if failure.stream is None else failure.stream
    return case.allocator_failed(replace(failure, stream=stream), event, demand_after, rest, whole)


def failure_of(trace: Trace) -> FailedRequest | None:
    """Return the last ``oom`` event of a trace as a failure; None where there is none."""
    event = last_failure(trace)
    return None if event is None else FailedRequest(requested_bytes=int(trace.size[event]), event=event)


def ending_failure(trace: Trace) -> FailedRequest | None:
    """Return the last ``oom`` event as a failure; None where there is none or the program survived it.

    A program survived where it went on to allocate, in all, at least a tenth of what it had been refused: it caught the
    error and carried on, with smaller requests for instance.
    """
    failure = failure_of(trace)
    if failure is None or failure.event is None:
        return failure
    later = slice(failure.event + 1, None)
    allocated = int(trace.size[later][trace.action[later] == Action.ALLOC].sum())
    return None if 10 * allocated >= max(1, failure.requested_bytes) else failure


@dataclass(frozen=True)
class _Case:
    """What is known of the run, whatever its outcome."""

    timeline: Timeline
    device: Device
    rules: Rules
    choose: SiteOf
    is_repeated: bool
    ends_whole: bool
    may_leak: bool
    leak_after: LeakSuspect | None

    def headroom(self, requests: Requests | None, baseline: Replay | None) -> Verdict:
        """Return the verdict where nothing failed: what is left at the peak, and how much of it is overhead."""
        event = self.timeline.peak_event()
        live = self.timeline.requested_bytes_at(event)
        requests = requests or self._requests()
        tried = try_settings(requests, self.rules, self.device, candidates=_CANDIDATES, baseline=baseline)
        rows = zip(tried.rows, tried.outcomes, strict=True)
        verdict = self._verdict(
            "headroom",
            live_requested_bytes=live,
            reserved_bytes=self.timeline.reserved_bytes_at(event),
            event=event if event >= 0 else None,
            tried=tuple(replace(row, overhead_bytes=outcome.overhead_at(event, live)) for row, outcome in rows),
            packing_lower_bound_bytes=live,
            categories=by_category(self.timeline, event),
        )
        return replace(verdict, headline=headroom_headline(verdict, self.timeline.reserved_peak()))

    def elsewhere(self, failure: FailedElsewhere) -> Verdict:
        """Return the verdict where the failure was not the caching allocator's: no replay can show it."""
        last = len(self.timeline.trace) - 1
        verdict = self._verdict(
            "host" if failure.failed_in == "host" else "outside",
            requested_bytes=failure.requested_bytes,
            live_requested_bytes=self.timeline.held_bytes_at(last),
            reserved_bytes=self.timeline.reserved_bytes_at(last),
            packing_lower_bound_bytes=self._peak_before(last + 1),
            categories=by_category(self.timeline, last, self.timeline.lifetimes.held_at(last)),
        )
        headline = elsewhere_headline(verdict, failed_in=failure.failed_in, message=failure.message)
        return replace(verdict, headline=headline)

    def _verdict(self, kind: VerdictKind, **facts: Any) -> Verdict:
        """Return a verdict with a leak in the whole recording, all but its headline."""
        leak = self._leak(ends_whole=self.ends_whole and kind == "headroom")
        facts = {"requested_bytes": None, "tags": ("leak",) if leak else (), "leak": leak} | facts
        return Verdict(kind=kind, headline="", available_bytes=self.device.available_bytes, **facts)

    def allocator_failed(
        self,
        failure: FailedRequest,
        event: int,
        demand_after: int | None,
        rest: RestOfIteration | None,
        whole: Requests | None,
    ) -> Verdict:
        """Return the verdict where the caching allocator refused a request."""
        requests, baseline = self._reproduced(Last(event, failure.requested_bytes, failure.stream or 0))
        reproduced = self.is_repeated and baseline.failed_event == event
        tried = try_settings(
            (reproduced and whole) or requests,
            self.rules,
            self.device,
            candidates=None if self.is_repeated else (),
            baseline=baseline,
        )
        last = min(event, len(self.timeline.trace) - 1)
        live, available = self.timeline.held_bytes_at(last), self.device.available_bytes
        segments = self._segments_at(failure, event, tried)
        lacking = live + failure.requested_bytes - available
        leak = self._leak(until=event)
        gets_past = tried.cures if lacking <= 0 and reproduced else ()
        needs_more_later = lacking <= 0 and (demand_after or 0) > available
        tags: dict[Tag, bool] = {
            "foreign": self._fits_alone(requests, demand_after or 0),
            "fraction": failure.by_fraction,
            "leak": leak is not None,
            "spurious": reproduced and tried.baseline.repeated,
            "undecided": lacking <= 0 and reproduced and tried.is_undecided and not gets_past,
            "later: capacity": needs_more_later,
        }
        verdict = Verdict(
            kind="capacity" if lacking > 0 else "fragmentation",
            headline="",
            requested_bytes=failure.requested_bytes,
            live_requested_bytes=live,
            available_bytes=available,
            available_is_bound=failure.available_is_bound,
            reserved_bytes=sum(segment.total_size for segment in segments) or self.timeline.reserved_bytes_at(last),
            event=event,
            cured_by=() if needs_more_later else gets_past,
            ends_at_failure=whole is None,
            rest=rest,
            uncured=lacking <= 0 and reproduced and not gets_past and not tried.is_undecided,
            tags=tuple(tag for tag, holds in tags.items() if holds),
            leak=leak,
            gaps=self._gaps(failure, segments, live),
            tried=tried.rows if self.is_repeated else (),
            packing_lower_bound_bytes=max(self._peak_before(event), live + failure.requested_bytes),
            categories=by_category(self.timeline, last, self.timeline.lifetimes.held_at(last)),
        )
        headline = headline_of(verdict, requested_bytes=failure.requested_bytes, demand_after=demand_after)
        return replace(verdict, headline=headline)

    def _leak(self, *, until: int | None = None, ends_whole: bool = False) -> LeakSuspect | None:
        """Return what grows before ``until``, or in another run of which this one is the beginning."""
        if not self.may_leak:
            return None
        return find_leak(self.timeline, self.choose, until=until, ends_whole=ends_whole) or self.leak_after

    def _reproduced(self, last: Last) -> tuple[Requests, Replay]:
        """Return the requests up to the failure, read such that their replay fails there too if it can."""
        for pending in (False, True):
            requests = self._requests(last, pending_at_last=pending)
            outcome = replay(requests, self.rules.settings(), self.device, at_recorded_addresses=True)
            if outcome.failed_event == last.event:
                break
        return requests, outcome

    def _requests(self, last: Last | None = None, *, pending_at_last: bool = False) -> Requests:
        initial = recover(self.timeline, self.rules.settings())
        return requests_of(self.timeline, last, pending_at_last=pending_at_last, initial=initial)

    def _gaps(self, failure: FailedRequest, segments: tuple[Segment, ...], live: int) -> tuple[Gap, ...]:
        """Return where the bytes sit; none where the segments at the failure are unknown or of another moment."""
        blocks = [block for segment in segments for block in segment.blocks]
        held = sum(block.requested_size for block in blocks if block.state == "active_allocated")
        if not segments or held != live:
            return ()
        request = request_as_seen(self.rules.settings(), failure.requested_bytes, failure.stream or 0)
        request = replace(request, pool_id=self._pool(failure, segments))
        return gaps_of(segments, request, self.device.available_bytes)

    def _pool(self, failure: FailedRequest, segments: tuple[Segment, ...]) -> PoolId | None:
        """Return the pool that was asked; None where there are private ones and the events name none."""
        trace = self.timeline.trace
        if all(segment.pool_id == DEFAULT_POOL for segment in segments):
            return DEFAULT_POOL
        if failure.event is None or not trace.names_pools:
            return None
        return trace.pools[trace.pool_id[failure.event]]

    def _segments_at(self, failure: FailedRequest, event: int, tried: Tried) -> tuple[Segment, ...]:
        """Return the segments at the failure: as copied then, as they still stood at the end, or as replayed."""
        if failure.segments:
            return failure.segments
        if np.isin(self.timeline.trace.action[event:], NEUTRAL).all() and self.timeline.segments is not None:
            return self.timeline.segments
        return tried.baseline.segments if tried.baseline.failed_event == event else ()

    def _fits_alone(self, requests: Requests, demand_after: int) -> bool:
        """Return whether the requests pass on the same device with no other process on it.

        Not where the whole run is known to need more than that device has.
        """
        alone = self.device.without_other_processes()
        if not self.device.other_process_bytes or demand_after > alone.available_bytes:
            return False
        return replay(requests, self.rules.settings(), alone, at_recorded_addresses=True).survives

    def _peak_before(self, event: int) -> int:
        return int(self.timeline.held[:event].max(initial=self.timeline.held_bytes_at(-1)))
