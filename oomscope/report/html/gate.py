"""A night of the gate as one offline page: every case, and behind each that is not as expected its evidence."""

from __future__ import annotations

from typing import Final, NamedTuple

from markupsafe import Markup

from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import GRAVITY, Status, Tone, ruling
from oomscope.gate.suite.metrics import METRICS
from oomscope.report import gate_sentences
from oomscope.report.charts.bars import Bar, bars
from oomscope.report.gate_commands import Commands
from oomscope.report.html.page import Script, fitting, render
from oomscope.report.html.probe import measurement_charts
from oomscope.report.rows import Line, lines

BARS: Final = {Tone.GOOD: "good", Tone.WARN: "quiet", Tone.BAD: "bad"}
"""CSS classes of bars."""
CASES_SHOWN: Final = 4000
DETAILS_SHOWN: Final = 60
"""Cases with their evidence."""
LINES_SHOWN: Final = 30
FEWEST: Final = 5
"""Of anything that there is as much of, however little room there is."""


class Detail(NamedTuple):
    """A case that is not as expected, and what the page shows of it."""

    case: CaseResult
    rows: list[MetricRow]
    """Its metrics that are not the same."""
    comparison: Markup | None
    """Expected and measured of the metric that decides, where both are bytes."""
    charts: dict[str, Markup]
    sites: list[Line]


def night_page(night: GateResult) -> str:
    """Return the page of a night."""
    return fitting(lambda share: _page(night, share))


def _page(night: GateResult, share: float) -> str:
    cases = sorted(night.cases, key=lambda case: GRAVITY.index(case.status))
    odd = [case for case in cases if case.status is not Status.SAME]
    detailed = odd[: max(FEWEST, int(share * DETAILS_SHOWN))]
    return render(
        "gate_night.html.j2",
        Script.read("tables.js", "copy.js"),
        title="Nightly memory gate",
        night=night,
        cases=cases[: max(FEWEST, int(share * CASES_SHOWN))],
        details=[_detail(case, max(FEWEST, int(share * LINES_SHOWN))) for case in detailed],
        undetailed=len(odd) - len(detailed),
        ruling=ruling,
        gate_sentences=gate_sentences,
        commands=Commands.of(night),
        versions=next((case.probe.versions for case in cases if case.probe is not None), {}),
    )


def _detail(case: CaseResult, lines_shown: int) -> Detail:
    probe = case.probe
    return Detail(
        case=case,
        rows=[row for row in case.rows if row.status is not Status.SAME],
        comparison=_comparison(case.decisive),
        charts=measurement_charts(probe) if probe is not None else {},
        sites=lines(probe.peak.sites, lines_shown) if probe is not None and probe.peak is not None else [],
    )


def _comparison(row: MetricRow | None) -> Markup | None:
    if row is None or row.expected is None or row.measured is None:
        return None
    if row.name not in METRICS or not METRICS[row.name].is_bytes:
        return None
    shown = [
        Bar(label="expected", value=row.expected, tone="quiet"),
        Bar(label="measured", value=row.measured, tone=BARS[ruling([row.status]).tone]),
    ]
    return bars(shown, title=f"{row.name}, expected and measured")
