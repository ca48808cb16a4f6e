"""What a snapshot cannot tell of a device, and what follows from that, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.judge.verdict import ending_failure, failure_of
from oomscope.snapshot.trace import Action, Trace
from oomscope.units import format_size


def caveats_of(analysis: Analysis) -> Iterator[str]:
    """Yield a sentence for each thing that must be known to read an explanation rightly."""
    trace, recording = analysis.timeline.trace, analysis.recording
    if not analysis.records_allocations and failure_of(trace) is None:
        yield "the file records no allocation: it shows the end only, and nothing can be replayed"
    elif not analysis.records_allocations:
        yield "the file records no allocation but the failed one: only that is replayed, on the memory held then"
    elif "start" in trace.missing:
        yield "the recording began after memory had been allocated: what was alive then has no allocation event"
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
    yield from (f"the file is not of one piece: {reason}" for reason in analysis.timeline.reconcile().reasons)


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
