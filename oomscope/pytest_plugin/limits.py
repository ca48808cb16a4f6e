"""The markers that limit memory: read from a test, and held against what was measured.

What is wrong is said in two lines: how much, and where it peaked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pytest

from oomscope.errors import InputError, OomscopeError, UsageError
from oomscope.units import format_size, parse_size

if TYPE_CHECKING:
    from oomscope.probe.result import ProbeResult

Metric = Literal["reserved", "requested", "overhead"]
_MEANINGS: dict[Metric, str] = {
    "reserved": "held by the allocator",
    "requested": "requested at once",
    "overhead": "held by the allocator beyond live bytes",
}
_REMEDY = "put model and data on the device of the fixture gpu_device, or measure with the fixture probe"


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The limit that one marker of a test sets."""

    marker: str
    metric: Metric
    limit_bytes: int


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One marker."""

    name: str
    metrics: tuple[Metric, ...]
    """Metrics that it can limit; the first unless ``of`` says otherwise."""
    example: str
    meaning: str

    @property
    def registration(self) -> str:
        """The line of ``pytest --markers``."""
        choices = f", of={self.metrics[0]!r}" if len(self.metrics) > 1 else ""
        return f"{self.name}(size{choices}): {self.meaning}"

    def read(self, mark: pytest.Mark) -> Limit:
        """Return the limit that ``mark`` sets.

        Raises:
            InputError: its arguments cannot be understood.
        """
        if len(mark.args) != 1:
            raise InputError(f"takes one size, not {len(mark.args)}", remedy=f"write {self.example}")
        unknown = sorted(set(mark.kwargs) - ({"of"} if len(self.metrics) > 1 else set()))
        if unknown:
            raise InputError(f"has no argument {unknown[0]!r}", remedy=f"write {self.example}")
        metric = mark.kwargs.get("of", self.metrics[0])
        if metric not in self.metrics:
            raise InputError(
                f"of={metric!r} is not something it limits", remedy=f"give {' or '.join(map(repr, self.metrics))}"
            )
        size = mark.args[0]
        if isinstance(size, bool) or not isinstance(size, (int, str)):
            raise InputError(f"{size!r} is not a size", remedy=f"write {self.example}")
        return Limit(marker=self.name, metric=metric, limit_bytes=parse_size(size))


KINDS: Final = (
    Kind(
        name="limit_gpu_memory",
        metrics=("reserved", "requested"),
        example='@pytest.mark.limit_gpu_memory("24 GiB")',
        meaning="fail the test if PyTorch's allocator holds more GPU memory than size (of='requested': asks for more)",
    ),
    Kind(
        name="limit_overhead",
        metrics=("overhead",),
        example='@pytest.mark.limit_overhead("2 GiB")',
        meaning="fail the test if the allocator's overhead, reserved less requested bytes, is more than size",
    ),
)
"""All markers, in the order in which they are checked."""


def limits_of(item: pytest.Item) -> list[Limit]:
    """Return the limits of a test; of several markers of one name the closest counts.

    Raises:
        UsageError: a marker cannot be understood; names the test.
    """
    found = []
    for kind in KINDS:
        mark = item.get_closest_marker(kind.name)
        try:
            found += [kind.read(mark)] if mark is not None else []
        except InputError as error:
            raise UsageError(f"marker {kind.name}: {error.message}", where=item.nodeid, remedy=error.remedy) from None
    return found


@contextmanager
def one_failure(heading: str) -> Iterator[None]:
    """Fail the running test with ``heading`` and the error where the block raises one of oomscope's."""
    try:
        yield
    except OomscopeError as error:
        raise pytest.fail.Exception(f"{heading}\n{error}", pytrace=False) from None


def judge(limits: Sequence[Limit], results: Sequence[ProbeResult], alive_before: int = 0) -> None:
    """Fail the running test if a result is beyond a limit, or if there is none to hold against one.

    Bytes that were ``alive_before`` the test count: the message says how many.
    """
    complaints = [text for limit in limits for result in results if (text := complaint(limit, result)) is not None]
    if not results:
        complaints = [
            f"{limit.marker}: nothing was measured to hold against {format_size(limit.limit_bytes)}\n{_REMEDY}"
            for limit in limits
        ]
    if complaints and results and alive_before:
        complaints.append(
            f"allocated before the test: {format_size(alive_before)}, by fixtures, setup methods or earlier tests"
        )
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


def complaint(limit: Limit, result: ProbeResult) -> str | None:
    """Return two lines on what ``result`` has beyond ``limit``; None where it keeps to it."""
    from oomscope.probe.demand import is_lower_bound

    size = measured_bytes(limit.metric, result)
    card = f"on {result.backend} {result.gpu}" if result.gpu else f"({result.backend})"
    allowed = format_size(limit.limit_bytes)
    if size is None:
        what = f"it is unknown what was {_MEANINGS[limit.metric]} {card}, limited to {allowed}"
        return f"{limit.marker}: {what}\n{_why(result)}"
    if size <= limit.limit_bytes:
        if result.outcome != "oom":
            return None
        what = f"out of memory {card}, though it needs less than the limit of {allowed}"
        if is_lower_bound(result):
            what = f"out of memory {card} before the limit of {allowed} could be checked"
        return f"{limit.marker}: {what}\n{_why(result)}"
    more = format_size(size - limit.limit_bytes)
    what = f"{format_size(size)} {_MEANINGS[limit.metric]} {card}, {more} over the limit of {allowed}"
    return f"{limit.marker}: {what}\n{_where(limit.metric, result)}"


def measured_bytes(metric: Metric, result: ProbeResult) -> int | None:
    """Return the bytes that ``result`` has of ``metric``; None where it does not have them."""
    from oomscope.probe.demand import requested_bytes, reserved_bytes

    if result.peak is None:
        return None
    if metric == "requested":
        return requested_bytes(result)
    held = result.reserved_peak
    if held is None:  # a command that prints a number has requested bytes alone
        return None
    if metric == "reserved":
        return reserved_bytes(result)
    return None if result.outcome == "oom" else held.overhead_bytes


def _where(metric: Metric, result: ProbeResult) -> str:
    """Return where the peak stood: of requested bytes with its line, and when most was reserved."""
    from oomscope.probe.demand import recorded_peak
    from oomscope.report.commands.probe import peak_place
    from oomscope.report.sentences import moment_text

    peak, held = recorded_peak(result), result.reserved_peak
    live = f"{format_size(peak.requested_bytes)} requested in {peak_place(peak)}" if peak else ""
    if metric == "requested" or held is None or (peak == result.peak and peak is not None and held.event == peak.event):
        return f"peak: {live}"
    when = moment_text(held.iteration, held.phase, held.microbatch)
    sizes = f"{format_size(held.reserved_then_bytes)} with {format_size(held.requested_bytes)} requested"
    return f"peak: {live}; held: {sizes} in {when}"


def _why(result: ProbeResult) -> str:
    if result.outcome == "oom":
        from oomscope.report.commands.probe import status_text

        return status_text(result)
    return "let the command write a memory snapshot (snapshot_glob), or limit requested bytes: of='requested'"
