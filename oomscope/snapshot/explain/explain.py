"""Explain a snapshot: why the job ran out of memory or how much room it had, and what its bytes are.

The analysis of each device (:mod:`oomscope.snapshot.explain.analysis`) becomes plain values, which reports, tables and
JSON read; caveats name what the file cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oomscope.snapshot.accounting.idle_before import idle_before
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.explain.composition import Describe, composition_at
from oomscope.snapshot.explain.curves import curves_of
from oomscope.snapshot.explain.explanation import (
    DeviceExplanation,
    Explanation,
    Instant,
    IterationsFound,
    PendingBytes,
    Place,
    PoolBytes,
)
from oomscope.snapshot.explain.pins import Pins, pins_of
from oomscope.snapshot.judge.leaks import suspects_of
from oomscope.snapshot.judge.verdict import ending_failure, failure_of
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.trace import DEFAULT_POOL, Action, Snapshot, Trace
from oomscope.units import Bytes, format_size


def explanation_of(snapshot: Snapshot, found: tuple[Analysis, ...], *, file: str) -> Explanation:
    """Return the explanation made of the analyses of a snapshot's devices."""
    rank = snapshot.provenance.rank if snapshot.provenance and snapshot.provenance.rank >= 0 else None
    return Explanation(file=file, devices=tuple(map(_device, found)), rank=rank)


def _device(analysis: Analysis) -> DeviceExplanation:
    timeline, trace, verdict = analysis.timeline, analysis.timeline.trace, analysis.verdict
    recording, iterations, describe = analysis.recording, analysis.iterations, analysis.describe
    event, failure_event = timeline.peak_event(), analysis.failure_event
    failed = failure_event is not None
    return DeviceExplanation(
        index=trace.device,
        events=len(trace),
        truncated=timeline.begins_late,
        reserved_before_bytes=timeline.initial_reserved_bytes,
        idle_before_bytes=idle_before(analysis.bare),
        torch_version=recording.rules.torch_version,
        version_source=recording.version_source,
        conf=recording.rules.conf,
        fidelity=recording.fidelity.share if recording.fidelity.shows_something else None,
        shows_end_only=analysis.shows_end_only and not failed,
        available_bytes=analysis.budget.available_bytes,
        available_source=analysis.budget.source,
        available_is_bound=analysis.budget.available_is_bound,
        peak=Bytes(
            requested_bytes=timeline.requested_bytes_at(event),
            reserved_bytes=timeline.reserved_peak().reserved_bytes,
        ),
        at_peak=Instant.of(timeline, analysis.at_peak),
        place=_place(timeline, event, describe),
        end=Instant.of(timeline, analysis.segments_after(len(trace) - 1)),
        verdict=verdict,
        composition=composition_at(timeline, event, analysis.evidence),
        pins=_pins(analysis),
        failure=composition_at(timeline, analysis.last_event(verdict), analysis.evidence, held=True)
        if failed
        else None,
        is_predicted=analysis.cut_short is not None,
        failed_at=None if failure_event is None else _place(timeline, failure_event, describe, failed=True),
        survived_failures=0 if failed else analysis.survived_failures,
        served=analysis.served,
        pending=tuple(_pending(timeline, event, describe)),
        pools=tuple(_pools(timeline)),
        iterations=IterationsFound(
            count=len(iterations), source=iterations.source, confidence=iterations.confidence.label
        ),
        suspects=suspects_of(timeline, iterations.ends),
        curves=curves_of(timeline, analysis.evidence),
        missing=(*trace.missing, *(["start"] if timeline.begins_late else [])),
        reconciliation=timeline.reconciliation,
        caveats=tuple(_caveats(analysis)),
    )


def _pins(analysis: Analysis) -> Pins | None:
    """Return what pins segments; nothing on a smaller card, where blocks would lie elsewhere."""
    here = analysis.of_interest
    if not here.knows_all_blocks or analysis.cut_short is not None:
        return None
    return pins_of(analysis.timeline, here, analysis.describe)


def _place(timeline: Timeline, event: int, describe: Describe, *, failed: bool = False) -> Place:
    """Return where the program was at ``event``, and which line allocated what; nothing where it asked for nothing."""
    row = np.flatnonzero(timeline.lifetimes.born == event)
    if not failed and (event < 0 or not len(row)):
        return Place(phase="", iteration=-1, site=None, category="")
    trace = timeline.trace
    moment = trace.moment_of(event)
    asked = site_of(trace.attributed_stack(event))
    site, category = describe(int(row[0])) if len(row) else (asked, "")
    return Place(phase=moment.phase, iteration=moment.iteration, site=site, category=category)


def _pending(timeline: Timeline, event: int, describe: Describe) -> Iterator[PendingBytes]:
    table = timeline.lifetimes
    found: dict[tuple[Site, int], list[int]] = {}
    for row in table.pending_at(event).tolist():
        found.setdefault((describe(row)[0], int(table.stream[row])), []).append(int(table.size[row]))
    for (site, stream), sizes in sorted(found.items(), key=lambda item: -sum(item[1])):
        yield PendingBytes(site=site, stream=stream, bytes=sum(sizes), count=len(sizes))


def _pools(timeline: Timeline) -> Iterator[PoolBytes]:
    segments = timeline.segments or ()
    for pool_id in sorted({segment.pool_id for segment in segments} - {DEFAULT_POOL}):
        own = [segment for segment in segments if segment.pool_id == pool_id]
        yield PoolBytes(
            pool_id=pool_id,
            segments=len(own),
            reserved_bytes=sum(segment.total_size for segment in own),
            active_bytes=sum(segment.active_size for segment in own),
        )


def _caveats(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence for each thing that must be known to read an explanation rightly."""
    trace, recording = analysis.timeline.trace, analysis.recording
    if not analysis.records_allocations and failure_of(trace) is None:
        shown = "it shows the end only" if analysis.shows_end_only else "most was held as the recording began"
        yield f"the file records no allocation: {shown}, and nothing can be replayed"
    elif not analysis.records_allocations:
        yield "the file records no allocation but the failed one: only that is replayed, on the memory held then"
    elif analysis.timeline.begins_late:
        yield "the recording began after memory had been allocated: what was alive then has no allocation event"
    if (idle := idle_before(analysis.bare)) and analysis.failure_event is None:
        reserved = format_size(analysis.bare.initial_reserved_bytes)
        yield (
            f"before the recording began the job had reserved {reserved}, and the recording never uses "
            f"{format_size(idle)} of it: an earlier peak is not in this file"
        )
    if analysis.records_allocations and not recording.fidelity.is_trusted:
        share = f"{100 * recording.fidelity.share:.1f} %"
        yield f"the replay does not repeat this recording ({share}): no other settings are compared"
    if analysis.records_allocations and "frames" in trace.missing:
        yield "the events have no stacks: their lines are unknown, and categories rest on lifetimes alone"
    yield from _of_failures(trace)
    if recording.settings_doubt:
        yield recording.settings_doubt
    if trace.unknown_actions:
        kinds = (" ".join(name.split()) for name in trace.unknown_actions)
        yield f"events of unknown kinds are left out: {', '.join(kinds)}"
    if not analysis.at_peak.is_known:
        yield f"the segments at the peak are unknown: {'; '.join(analysis.at_peak.doubts)}"
    yield from (f"the file is inconsistent: {reason}" for reason in analysis.timeline.reconciliation.reasons)


def _of_failures(trace: Trace) -> Iterator[str]:
    """Yield that more than one allocation failed, or that the program survived."""
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed):
        return
    if ending_failure(trace) is None:
        last = f"{format_size(int(trace.size[failed[-1]]))} at event {failed[-1]:,}"
        times = "an allocation failed" if len(failed) == 1 else f"{len(failed):,} allocations failed"
        yield f"{times}, the last one of {last}; the program survived it, and the verdict is of the whole recording"
    elif len(failed) > 1:
        yield f"{len(failed):,} allocations failed; the verdict is of the last one, at event {failed[-1]:,}"
