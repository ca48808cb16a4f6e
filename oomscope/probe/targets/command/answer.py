"""What a command answered, by its exit status, by what it printed, and by what it wrote.

0 is measured, 125 cannot be tested, as for ``git bisect run``. Any other status is a failure, unless a snapshot or
torch's own words say that memory ran out.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from oomscope.errors import InputError, TargetError
from oomscope.probe.analysis.failures import Refusal
from oomscope.probe.git_bisect import UNTESTABLE
from oomscope.probe.job import CommandTarget, ProbeJob
from oomscope.probe.machine.fingerprint import versions
from oomscope.probe.machine.processes import signal_name
from oomscope.probe.result import (
    ErrorKind,
    Failure,
    Oom,
    Outcome,
    Peak,
    ProbeResult,
    Site,
    SiteBytes,
    without_measurement,
)
from oomscope.probe.targets.command.output import Metric, Said, metric_in
from oomscope.probe.targets.command.snapshots import Stamp, written_since
from oomscope.virtual.cards import card_bytes

_WRITES: Final = "see that it dumps one below the checkout, or mend --snapshot-glob"
_CANNOT_RUN: Final = (126, 127)
"""What a shell says of a program that it cannot run (POSIX, exit status for commands)."""
_SIGNALLED: Final = 128
"""A shell adds the number of the signal that ended a program to this."""
_PRINTED: Final = Site(file="", line=0, function="(the number that the command printed)")
_UNKNOWN: Final = "unknown"


def answer(job: ProbeJob, target: CommandTarget, status: int, said: Said, before: Mapping[Path, Stamp]) -> ProbeResult:
    """Return what came of a command.

    Args:
        job: what was asked.
        target: the command.
        status: its exit status, negative for a signal.
        said: what counts of its output.
        before: the snapshots that were there before.

    Raises:
        TargetError: what was asked of it is not there.
        SnapshotError, AllocatorConfError: what it wrote cannot be used.
    """
    if status == UNTESTABLE:
        return unmeasured(job, *failure_of(status))
    pattern = target.snapshot_glob
    recorded = None
    if pattern is not None:
        files = written_since(target.place, pattern, before)
        recorded = _by_snapshot(job, target, files, has_failed=status != 0) if files else None
    if status != 0:
        if recorded is not None:
            return recorded
        return unmeasured(job, *failure_of(status)) if said.refusal is None else _by_words(job, said.refusal)
    if target.metric_regex is not None:
        return _by_number(job, metric_in(said, target.metric_regex))
    if pattern is None:
        return _base(job, "fits")
    if recorded is None:
        raise TargetError(f"the command wrote no snapshot that {pattern!r} names", remedy=_WRITES)
    return recorded


def unmeasured(job: ProbeJob, kind: ErrorKind, message: str) -> ProbeResult:
    """Return the result of a command that measured nothing."""
    return without_measurement(job, "command", Failure(kind=kind, message=message))


def failure_of(status: int) -> tuple[ErrorKind, str]:
    """Return what an exit status other than 0 means where memory did not run out; negative for a signal."""
    if status < 0:
        ended = -status in {signal.SIGKILL, signal.SIGTERM}
        return "killed" if ended else "crash", f"the command was ended by {signal_name(-status)}"
    text = f"the command ended with status {status}"
    if status == UNTESTABLE:
        return "untestable", f"{text}: it cannot be tested"
    return "step" if status in _CANNOT_RUN or status >= _SIGNALLED else "exit", text


def _by_snapshot(job: ProbeJob, target: CommandTarget, files: list[Path], *, has_failed: bool) -> ProbeResult | None:
    """Return what ``files`` say; None where the command failed and they do not say that memory ran out.

    A run that went through is asked again on the card that the job names; one that failed did so on its own.
    """
    from oomscope.probe.targets.command.from_snapshot import judged
    from oomscope.probe.targets.command.snapshots import Card, failed, worst_of

    total = None if has_failed else card_bytes(job.limit_bytes, job.gpu)
    outside = job.non_torch_bytes + job.other_process_bytes
    card = None if total is None else Card(limit_bytes=total, non_torch_bytes=outside)
    try:
        found = worst_of(files, target.place, card=card)
    except InputError:
        if has_failed:  # it may have ended in the middle of a file
            return None
        raise
    if found is None or (has_failed and not failed(found.analysis)):
        return None
    return judged(job, found, card=card, has_failed=has_failed)


def _by_words(job: ProbeJob, refusal: Refusal) -> ProbeResult:
    """Return an OOM of which no more is known than its message."""
    oom = Oom(
        requested_bytes=refusal.requested_bytes,
        iteration=-1,
        phase="",
        microbatch=-1,
        site=None,
        message=refusal.message,
    )
    return replace(_base(job, "oom"), oom=oom, notes=(f"the command said: {refusal.message}",))


def _by_number(job: ProbeJob, metric: Metric) -> ProbeResult:
    """Return the bytes that were printed as the peak of live ones; what the allocator held is not known."""
    size = metric.bytes
    peak = Peak(
        requested_bytes=size,
        allocated_bytes=None,
        active_bytes=None,
        reserved_bytes=None,
        iteration=-1,
        phase="",
        microbatch=-1,
        site=None,
        event=-1,
        categories={_UNKNOWN: size},
        sites=(SiteBytes(site=_PRINTED, bytes=size, count=1, category=_UNKNOWN),),
    )
    return replace(_base(job, "fits"), peak=peak, notes=(f"the command printed: {metric.line}",))


def _base(job: ProbeJob, outcome: Outcome) -> ProbeResult:
    return ProbeResult(
        backend="command", outcome=outcome, rank=job.rank, world_size=job.world_size, versions=versions()
    )
