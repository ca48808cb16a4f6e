"""A night of the gate for the terminal: one line a case, then what is not as expected, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.gate.calibrate import Calibration
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.status import Ruling, Status, ruling
from oomscope.report import gate_sentences
from oomscope.report.gate_commands import Commands
from oomscope.report.text.layout import ShellCommand, facts, section, table


def gate_report(night: GateResult, commands: Commands | None = None) -> RenderableType:
    """Return the whole report, with ``commands`` to go on by; without them, with those for any folder."""
    parts: list[RenderableType] = [_heading(night), case_table(night)]
    others = metric_table(night)
    if others.row_count:
        parts.append(section("Metrics that are not as expected", others))
    remarks = _remarks(night)
    if remarks:
        parts.append(section("Remarks", facts(remarks)))
    culprits = [(case.name, Text(gate_sentences.culprit_text(case.culprit))) for case in night.cases if case.culprit]
    if culprits:
        parts.append(section("Culprit", facts(culprits)))
    steps = gate_sentences.next_steps(night, commands or Commands.seen_from(night, None))
    if steps:
        parts.append(section("Next", Group(*(line for step in steps for line in _step(step)))))
    return Group(*parts)


def case_table(night: GateResult) -> Table:
    """Return one row a case: the metric that decides, or the first where none does."""
    rows = table("Case", "Verdict", "Metric", ">Expected", ">Measured", ">Difference")
    for case in night.cases:
        row = case.decisive or next(iter(case.rows), None)
        numbers = ("", "-", "-", "-") if row is None else gate_sentences.row_texts(row)
        if case.ran_out:
            numbers = ("", "fits", "out of memory", "")
        rows.add_row(case.name, _status_text(case.status, night.ruling_of(case)), *numbers)
    return rows


def metric_table(night: GateResult) -> Table:
    """Return every metric that is neither the same nor the one in the row of its case."""
    rows = table("Case", "Metric", "Verdict", ">Expected", ">Measured", ">Difference", ">Warns beyond", ">Fails beyond")
    for case in night.cases:
        for row in case.rows:
            if row.status is Status.SAME:
                continue
            name, *numbers = gate_sentences.row_texts(row)
            bands = gate_sentences.band_texts(row)
            rows.add_row(case.name, name, _status_text(row.status, ruling([row.status])), *numbers, *bands)
    return rows


def calibration_report(found: Sequence[Calibration]) -> RenderableType:
    """Return what calibration found: the spread of each metric, and the bands that follow."""
    rows = table("Case", "Metric", ">Least", ">Most", ">Spread", ">Warn", ">Fail")
    for one in found:
        for name, spread in one.spreads.items():
            bands = spread.bands(name)
            sizes = (spread.least, spread.most, spread.size, bands.warn.absolute, bands.fail.absolute)
            rows.add_row(one.name, name, *(gate_sentences.value_text(name, size) for size in sizes))
    return rows


def _heading(night: GateResult) -> Text:
    style = "bold green" if night.ruling.passes else "bold red"
    return Text(gate_sentences.heading(night), style=style)


def _status_text(status: Status, come_to: Ruling) -> Text:
    return Text(str(status), style=gate_sentences.STYLES[come_to.tone])


def _step(step: gate_sentences.Step) -> Iterator[RenderableType]:
    """Yield the sentence, and each command on lines of its own."""
    yield Text(f"{step.text}:" if step.commands else step.text)
    for command in step.commands:
        yield ShellCommand(command)


def _remarks(night: GateResult) -> list[tuple[str, Text]]:
    return [(case.name, Text(text)) for case in night.cases for text in _said(case)]


def _said(case: CaseResult) -> list[str]:
    standing = case.standing
    dirty = "measured with changes that are in no commit" if standing is not None and standing.dirty else ""
    is_odd = case.status not in {Status.SAME, Status.BETTER}
    return [text for text in (case.reason, dirty if is_odd else "", *case.notes) if text]
