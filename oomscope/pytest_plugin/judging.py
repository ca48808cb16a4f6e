"""Holds results against the limits of a test, and says in two lines what is wrong: how much, and where it peaked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oomscope.probe.demand import is_lower_bound, recorded_peak, requested_bytes, reserved_bytes
from oomscope.probe.result import ProbeResult
from oomscope.pytest_plugin.limits import Limit, Metric
from oomscope.report.probe import peak_place, status_text
from oomscope.report.sentences import moment_text
from oomscope.units import format_size

_MEANINGS: dict[Metric, str] = {
    "reserved": "held by the allocator",
    "requested": "requested at once",
    "overhead": "held by the allocator beyond what is alive",
}
_REMEDY = "put model and data on the device of the fixture gpu_device, or measure with the fixture probe"


def judge(limits: Sequence[Limit], results: Sequence[ProbeResult]) -> None:
    """Fail the running test if a result is beyond a limit, or if there is none to hold against one."""
    complaints = [complaint for limit in limits for complaint in _complaints(limit, results)]
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


def _complaints(limit: Limit, results: Sequence[ProbeResult]) -> list[str]:
    if not results:
        return [f"{limit.marker}: nothing was measured to hold against {format_size(limit.limit_bytes)}\n{_REMEDY}"]
    return [text for result in results if (text := complaint(limit, result)) is not None]


def complaint(limit: Limit, result: ProbeResult) -> str | None:
    """Return two lines on what ``result`` has beyond ``limit``; None where it keeps to it."""
    size = measured_bytes(limit.metric, result)
    card = f"on {result.backend} {result.gpu}" if result.gpu else f"({result.backend})"
    allowed = format_size(limit.limit_bytes)
    if size is None:
        what = f"nothing tells what was {_MEANINGS[limit.metric]} {card}, limited to {allowed}"
        return f"{limit.marker}: {what}\n{_why(result)}"
    if size <= limit.limit_bytes:
        return None if result.outcome != "oom" else f"{limit.marker}: {_cut_off(result, card, allowed)}\n{_why(result)}"
    more = format_size(size - limit.limit_bytes)
    what = f"{format_size(size)} {_MEANINGS[limit.metric]} {card}, {more} over the limit of {allowed}"
    return f"{limit.marker}: {what}\n{_where(limit.metric, result)}"


def _cut_off(result: ProbeResult, card: str, allowed: str) -> str:
    """Return what is said of a run that went out of memory with less than its limit: that it keeps to none."""
    if is_lower_bound(result):
        return f"out of memory {card} before the limit of {allowed} could be checked"
    return f"out of memory {card}, though it needs less than the limit of {allowed}"


def measured_bytes(metric: Metric, result: ProbeResult) -> int | None:
    """Return the bytes that ``result`` has of ``metric``; None where it does not tell."""
    if result.peak is None:
        return None
    if metric == "requested":
        return requested_bytes(result)
    held = result.reserved_peak
    if held is None:  # a command that prints a number tells of requested bytes alone
        return None
    if metric == "reserved":
        return reserved_bytes(result)
    return None if result.outcome == "oom" else held.reserved_bytes - held.requested_bytes


def _where(metric: Metric, result: ProbeResult) -> str:
    """Return where the peak stood: of requested bytes with its line, and when most was reserved."""
    peak, held = recorded_peak(result), result.reserved_peak
    live = f"{format_size(peak.requested_bytes)} requested in {peak_place(peak)}" if peak else ""
    if metric == "requested" or held is None or (peak == result.peak and peak is not None and held.event == peak.event):
        return f"peak: {live}"
    when = moment_text(held.iteration, held.phase, held.microbatch)
    sizes = f"{format_size(held.reserved_bytes)} with {format_size(held.requested_bytes)} requested"
    return f"peak: {live}; held: {sizes} in {when}"


def _why(result: ProbeResult) -> str:
    if result.outcome == "oom":
        return status_text(result)
    return "let the command write a memory snapshot (snapshot_glob), or limit requested bytes: of='requested'"
