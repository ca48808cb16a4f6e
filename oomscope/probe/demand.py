"""The bytes by which probes are compared: what the run wanted alive at once, and what was reserved for it.

A run that ended out of memory was cut off before its peak, and one for which the allocator emptied its cache held less
than it would have. Where the same run without a limit is known, its bytes count; elsewhere what was alive at the
failure plus the request that failed, and what was reserved by then, which are lower bounds.
"""

from __future__ import annotations

from oomscope.probe.result import Peak, ProbeResult
from oomscope.snapshot.verdict_types import VerdictKind

_MEMORY_OF_THE_MACHINE: frozenset[VerdictKind] = frozenset({"host", "outside"})
"""Verdicts on memory that the caching allocator did not refuse: how much was left depends on what else runs."""


def is_lower_bound(result: ProbeResult) -> bool:
    """Whether the bytes of ``result`` are only those up to a failure."""
    return result.outcome == "oom" and result.demand_bytes is None


def requested_bytes(result: ProbeResult) -> int:
    """Return the requested bytes that the run wanted alive at once (0 where nothing was measured)."""
    return max(recorded_requested_bytes(result), wanted_at_failure(result), demand_bytes(result))


def reserved_bytes(result: ProbeResult) -> int | None:
    """Return what the allocator would hold at most if it had no limit, else what it held.

    0 where nothing was measured, None where requested bytes alone were.
    """
    held = [peak.reserved_bytes for peak in (result.peak, result.demand_peak) if peak]
    known = [size for size in held if size is not None]
    return None if held and not known else max(known, default=0)


def recorded_peak(result: ProbeResult) -> Peak | None:
    """Return the peak whose lines are known: that of the run without a limit where there is one, else of this run."""
    return result.demand_peak or result.peak


def recorded_requested_bytes(result: ProbeResult) -> int:
    """Return the requested bytes of :func:`recorded_peak`."""
    peak = recorded_peak(result)
    return peak.requested_bytes if peak else 0


def wanted_at_failure(result: ProbeResult) -> int:
    """Return the bytes alive at the failed allocation plus the request that failed.

    0 for a run that fits, and where the request was not the caching allocator's (a library's, the host's).
    """
    if result.outcome != "oom" or result.verdict is None or result.verdict.kind not in {"capacity", "fragmentation"}:
        return 0
    return result.verdict.wanted_bytes


def demand_bytes(result: ProbeResult) -> int:
    """Return the peak of the same run without a limit; 0 where it was not run or not needed."""
    return result.demand_bytes or 0 if result.outcome == "oom" else 0


def is_of_the_machine(result: ProbeResult) -> bool:
    """Whether ``result`` ran out of memory that other programs may have taken, so that it shows little of the code.

    That is an OOM of the host or of a library beside the caching allocator, and one that other processes on the card
    had a part in. On a virtual card what others hold is a setting, and repeats.
    """
    verdict = result.verdict
    if verdict is None:
        return False
    with_others = "foreign" in verdict.tags and result.backend == "cuda"
    return verdict.kind in _MEMORY_OF_THE_MACHINE or with_others
