"""A night of the gate: one line a case, then what is not as expected with its evidence, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from oomscope.bisect.vcs.forge import Forge
from oomscope.gate.calibrate import Calibration
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, Culprit, GateResult
from oomscope.gate.night.status import GRAVITY, Ruling, Status, ruling
from oomscope.report import parts
from oomscope.report.commands import gate_sentences
from oomscope.report.commands.gate_sentences import Commands, commit_text
from oomscope.report.commands.probe import device_text, measurement_parts, rank_text, status_text
from oomscope.report.parts import Cell, columns
from oomscope.report.sentences import count, date_text, short_hash, shortened
from oomscope.report.verdict_text import verdict_line

CAUSES_SHOWN: Final = 12
"""Cases whose cause stands at the top."""
NUMBERS: Final = ("Metric", "number:Expected", "number:Measured", "number:Difference")


def gate_report(night: GateResult, commands: Commands | None = None) -> Iterator[parts.Part]:
    """Yield the whole report, with ``commands`` to go on by; without them, with those for any folder."""
    yield from (_status(night), case_table(night.cases, night), metric_table(night.cases))
    if remarks := [(case.name, text) for case in night.cases for text in _remarks(case)]:
        yield from (parts.Heading(text="Remarks"), parts.Facts(rows=remarks))
    if culprits := [(case.name, gate_sentences.culprit_text(case.culprit)) for case in night.cases if case.culprit]:
        yield from (parts.Heading(text="Culprit"), parts.Facts(rows=culprits))
    yield from next_parts(night, commands or Commands.seen_from(night, None))


def _status(night: GateResult) -> parts.Line:
    return parts.status(gate_sentences.heading(night), "good" if night.ruling.passes else "bad")


def case_table(cases: Sequence[CaseResult], night: GateResult, *, has_commit: bool = False) -> parts.Table:
    """Return one row a case: the metric that decides, or the first where none does."""
    commit = ["Measured at"] if has_commit else []
    return parts.Table(
        name="cases",
        columns=columns("Case", "Verdict", *NUMBERS, *commit),
        rows=[
            (
                case.name,
                _verdict(case.status, night.ruling_of(case)),
                *_case_numbers(case),
                *([commit_text(case.standing, 80)] if has_commit else []),
            )
            for case in cases
        ],
    )


def _case_numbers(case: CaseResult) -> Sequence[parts.Value]:
    if case.ran_out:
        return "", "fits", "out of memory", ""
    row = case.decisive or next(iter(case.rows), None)
    return ("", None, None, None) if row is None else _numbers(row)


def _numbers(row: MetricRow) -> Sequence[parts.Value]:
    name, *texts = gate_sentences.row_texts(row)
    numbers = (row.expected, row.measured, row.difference)
    return name, *(Cell(text=text, number=number) for text, number in zip(texts, numbers, strict=True))


def metric_table(cases: Sequence[CaseResult]) -> parts.Table:
    """Return every metric of ``cases`` that is not as expected, with the bands beyond which it warns and fails."""
    return parts.Table(
        title="Metrics that are not as expected",
        columns=columns("Case", "Metric", "Verdict", *NUMBERS[1:], "number:Warns beyond", "number:Fails beyond"),
        rows=[
            (
                *(case.name, row.name, _verdict(row.status, ruling([row.status]))),
                *(*_numbers(row)[1:], *gate_sentences.band_texts(row)),
            )
            for case in cases
            for row in case.rows
            if row.status is not Status.SAME
        ],
    )


def _verdict(status: Status, come_to: Ruling) -> Cell:
    return Cell(text=str(status), tone=come_to.tone.value)


def _remarks(case: CaseResult) -> list[str]:
    standing = case.standing
    dirty = "measured with changes that are in no commit" if standing is not None and standing.dirty else ""
    is_odd = case.status not in {Status.SAME, Status.BETTER}
    return [text for text in (case.reason, dirty if is_odd else "", *case.notes) if text]


def next_parts(night: GateResult, commands: Commands) -> Iterator[parts.Part]:
    """Yield what to do about the cases that are not as expected."""
    steps = gate_sentences.next_steps(night, commands)
    if steps:
        yield parts.Heading(text="Next")
    for step in steps:
        yield parts.line(f"{step.text}:" if step.commands else step.text)
        if step.commands:
            yield parts.Commands(commands=step.commands)


def night_parts(night: GateResult, details: int, lines: int) -> Iterator[parts.Part]:
    """Yield the page of a night: the answer, its causes, the numbers, what to do, and the evidence of each odd case.

    The gravest ``details`` cases have their evidence, with ``lines`` of code in each table.
    """
    commands, forge = Commands.of(night), Forge(night.forge) if night.forge else None
    against = f" · against {commands.baseline}" if commands.baseline else ""
    yield parts.line(f"{commands.suite} · {date_text(night.started)}{against}", "soft")
    yield _status(night)
    ordered = sorted(night.cases, key=lambda case: GRAVITY.index(case.status))
    odd = [case for case in ordered if case.status is not Status.SAME]
    if causes := [(case.name, _cause(case, forge)) for case in odd[:CAUSES_SHOWN]]:
        yield parts.Facts(rows=causes)
    yield parts.Heading(text="Cases")
    yield case_table(ordered, night, has_commit=True)
    yield from next_parts(night, commands)
    if night.home is not None:
        yield parts.line(gate_sentences.FROM_THE_ROOT, "soft")
    for case in odd[:details]:
        yield from _detail(case, night, commands, lines, forge)
    if (more := len(odd) - details) > 0:
        text = f"{count(more, 'further case')} not as expected: the JSON document has the evidence."
        yield parts.line(text, "soft")


def _cause(case: CaseResult, forge: Forge | None) -> parts.Line:
    """Return why a case is not as expected: the commit at fault and the line that grew, else what was seen."""
    probe, culprit = case.probe, case.culprit
    verdict = probe.verdict.headline if case.ran_out and probe and probe.verdict else ""
    summary = shortened(verdict or gate_sentences.headline(case), 300)
    if culprit is None or not culprit.commit:
        return parts.Line(text=summary)
    place = f", at {culprit.site}" if culprit.site else ""
    author = shortened(culprit.author, 80)
    return replace(_commit_line(culprit, forge), label="", text=f", by {author}{place}. {summary}")


def _commit_line(culprit: Culprit, forge: Forge | None) -> parts.Line:
    return parts.Line(
        label="Culprit",
        strong=f"{short_hash(culprit.commit)} {shortened(culprit.subject, 240)}",
        text=f", by {shortened(culprit.author, 80)}",
        link=forge.commit(culprit.commit) if forge else "",
        tone="bad",
    )


def _detail(
    case: CaseResult, night: GateResult, commands: Commands, lines: int, forge: Forge | None
) -> Iterator[parts.Part]:
    yield parts.Heading(text=f"{case.name}: {case.status}")
    if case.reason:
        yield parts.line(shortened(case.reason, 600))
    probe = case.probe
    if case.culprit is not None:
        told = probe.verdict.headline if probe and probe.verdict else ""
        yield from _culprit_parts(case.culprit, told, forge)
    yield parts.Commands(title="Measure it again", commands=[commands.run([case.name])])
    yield metric_table([case])
    if probe is not None and probe.peak is not None:
        yield parts.Heading(text=f"The measurement of {case.name}: {status_text(probe)}", level=3)
        yield parts.line(f"{rank_text(probe)} · {device_text(probe)}", "soft")
        if probe.oom and probe.verdict:
            yield verdict_line(probe.verdict)
        yield from measurement_parts(probe, shown=lines)
    elif probe is not None and probe.failure and probe.failure.detail:
        yield parts.line(probe.failure.detail)
    yield from map(parts.note, case.notes)


def _culprit_parts(culprit: Culprit, told: str, forge: Forge | None) -> Iterator[parts.Part]:
    """Yield whose commit it was and the lines that grew; ``told``: a verdict that the page has already."""
    if not culprit.commit:
        yield parts.Line(label="Culprit", text=shortened(culprit.message, 600))
        return
    yield _commit_line(culprit, forge)
    if culprit.verdict and culprit.verdict != told:
        yield parts.line(culprit.verdict)
    if share := gate_sentences.share_text(culprit):
        yield parts.line(f"It {share}.")
    yield parts.Table(
        title="Lines that grew with that commit",
        columns=columns("change:Requested at the peak", "category:Category", "code:Line"),
        rows=[
            (line.delta_bytes, line.category, Cell(text=line.site.brief, title=str(line.site)))
            for line in culprit.grown
        ],
    )
    if culprit.commands:
        yield parts.Commands(title="See the commit again", commands=culprit.commands)


def calibration_report(found: Sequence[Calibration]) -> list[parts.Part]:
    """Return what calibration found: the spread of each metric, and the bands that follow."""
    rows = []
    for one in found:
        for name, spread in one.spreads.items():
            bands = spread.bands(name)
            sizes = (spread.least, spread.most, spread.size, bands.warn.absolute, bands.fail.absolute)
            rows.append((one.name, name, *(gate_sentences.value_text(name, size) for size in sizes)))
    names = ("number:Least", "number:Most", "number:Spread", "number:Warn", "number:Fail")
    return [parts.Table(columns=columns("Case", "Metric", *names), rows=rows)]
