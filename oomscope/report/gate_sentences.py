"""The sentences of the gate that terminal and HTML reports share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, Culprit, GateResult
from oomscope.gate.night.status import GRAVITY, Status, Tone
from oomscope.gate.suite.metrics import METRICS
from oomscope.report.bisect_sentences import short_hash
from oomscope.report.gate_commands import Commands
from oomscope.report.sentences import count
from oomscope.units import format_size

STYLES = {Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red"}
"""Colours of a terminal."""
_TERA = 10**12
FROM_THE_ROOT = "Commands are for the root of a checkout of the repository."
NAMED = 10
"""Cases that one sentence names."""


def value_text(metric: str, value: int | None) -> str:
    """Return a value for people: a size, or operations; the number alone of a metric that another version knows."""
    if value is None:
        return "-"
    if metric not in METRICS:
        return f"{value:,}"
    if METRICS[metric].is_bytes:
        return format_size(value)
    return f"{value / _TERA:,.3f} TFLOP" if abs(value) >= _TERA // 1000 else f"{value:,} FLOP"


def change_text(metric: str, value: int | None) -> str:
    """Return a difference for people, with its sign."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"+{value_text(metric, value)}" if value > 0 else value_text(metric, value)


def row_texts(row: MetricRow) -> tuple[str, str, str, str]:
    """Return the metric, what was expected and measured of it, and the difference."""
    expected, measured = value_text(row.name, row.expected), value_text(row.name, row.measured)
    change = change_text(row.name, row.difference)
    reads_alike = row.difference not in {row.warn, row.fail} and change.lstrip("+") in band_texts(row)
    return row.name, expected, measured, f"{change} ({row.difference:+,})" if reads_alike else change


def band_texts(row: MetricRow) -> tuple[str, str]:
    """Return beyond which growth a metric warns and fails."""
    return value_text(row.name, row.warn), value_text(row.name, row.fail)


def exact_text(row: MetricRow) -> str:
    """Return ``peak_requested 2.34 GiB, expected 2.33 GiB (+10.00 MiB)``, with the exact numbers."""
    name, expected, measured, change = row_texts(row)
    if row.difference is None:
        return f"{name} {measured}"
    return f"{name} {measured}, expected {expected} ({change}; {row.measured} and {row.expected})"


def headline(case: CaseResult) -> str:
    """Return the status of a case and what it rests on, in one line."""
    row = case.decisive
    said = case.reason or (exact_text(row) if row is not None else "")
    return f"{case.status}: {said}" if said else str(case.status)


def case_text(case: CaseResult) -> str:
    """Return the headline of a case, and whose commit it was."""
    culprit = f"; {culprit_text(case.culprit)}" if case.culprit is not None and case.culprit.commit else ""
    return f"{headline(case)}{culprit}"


def heading(night: GateResult) -> str:
    """Return ``RED, 3 cases: 1 worse, 2 same``, and whether it was interrupted."""
    return f"{night.ruling.word}{', interrupted' if night.interrupted else ''}, {tally(night)}"


def tally(night: GateResult) -> str:
    """Return ``3 cases: 1 worse, 2 same``."""
    statuses = [case.status for case in night.cases]
    parts = ", ".join(f"{statuses.count(status)} {status}" for status in GRAVITY if status in statuses)
    return f"{count(len(statuses), 'case')}: {parts}"


def outcome_text(case: CaseResult) -> str:
    """Return in a word how the probe of a case ended."""
    return {"fits": "fits", "oom": "out of memory", "error": "failed"}.get(case.outcome or "", "not probed")


_UNANSWERED = {
    Status.DEFECT: "internal error: report it with the line under Remarks; the other cases have their answers",
    Status.UNUSABLE: "unusable: fix what the remark names, in the suite or in the configuration",
    Status.UNFIT: "unfit: oomscope doctor says what this machine lacks",
    Status.UNMEASURED: "nothing measured: take the metric out of the suite, or let the case run to its end",
}
"""What to do about cases that say nothing of memory."""


class Step(NamedTuple):
    """What to do next."""

    text: str
    commands: tuple[str, ...] = ()
    """Shell commands that do it."""


def next_steps(night: GateResult, commands: Commands) -> list[Step]:
    """Return what to do about the cases that are not as expected, one step for each kind."""
    named = {status: [case.name for case in night.cases if case.status is status] for status in Status}
    left = named.pop(Status.UNMEASURED) if night.interrupted else []
    steps = [Step("interrupted: measure what is left", (commands.run(_few(left)),))] if left else []
    steps += [Step(text) for status, text in _UNANSWERED.items() if named.get(status)]
    if worse := named[Status.WORSE]:
        steps.append(_worse(worse, night, commands))
    if new := [*named[Status.NO_BASELINE], *named[Status.INCOMPATIBLE]]:
        steps.append(Step("no baseline for this: accept what is measured", (commands.update(_few(new)),)))
    if better := [case.name for case in night.cases if case.is_better]:
        steps.append(Step("better than the baseline: propose a new one", (commands.update(_few(better)),)))
    if named[Status.UNTESTABLE]:
        where = "what the code said is in the JSON document (--result FILE), under probe.failure"
        steps.append(Step(f"untestable: {where}"))
    if varying := named[Status.UNCONFIRMED]:
        steps.append(Step("unconfirmed: the numbers vary; set bands", (commands.calibrate(_few(varying)),)))
    if warned := named[Status.WARN]:
        said = "warn: set bands in the suite, or accept it"
        steps.append(Step(f"{said}{_by_name(warned)}", (_accepting(warned, commands),)))
    if night.unwatched:
        steps.append(Step(_unwatched(night.unwatched)))
    return steps


def _worse(names: list[str], night: GateResult, commands: Commands) -> Step:
    if any(case.culprit for case in night.cases):
        return Step(f"worse: fix it, or accept it{_by_name(names)}", (_accepting(names, commands),))
    found = commands.run(_few(names), "--bisect")
    return Step(f"worse: find the commit, or accept it{_by_name(names)}", (found, _accepting(names, commands)))


def _accepting(names: list[str], commands: Commands) -> str:
    return commands.update(accept=names if len(names) <= NAMED else names[:1])


def _by_name(names: list[str]) -> str:
    """Say that each of many cases is accepted by its own name, as the one that a command has."""
    return "" if len(names) <= NAMED else f" by its name, as this first of {len(names)}"


def _few(names: list[str]) -> list[str]:
    """Return the names that a command has: none, which stands for all cases, where there are many."""
    return names if len(names) <= NAMED else []


def _unwatched(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    of_more = f" and {more} more" if more > 0 else ""
    named = ", ".join(names[:NAMED])
    return f"not watched, since only the baseline has them: {named}{of_more}; oomscope gate update removes them"


def culprit_text(culprit: Culprit) -> str:
    """Return what the search for a regression's commit found, in one line."""
    if not culprit.commit:
        return culprit.message
    parts = [f"{short_hash(culprit.commit)} {culprit.subject}"]
    parts += [f"by {culprit.author}"] if culprit.author else []
    parts += [f"at {culprit.site}"] if culprit.site else []
    share = share_text(culprit)
    parts += [share] if share else []
    parts += [culprit.verdict] if culprit.verdict else []
    return ", ".join(parts)


def share_text(culprit: Culprit) -> str:
    """Say how little of the growth came with the commit; empty where all of it did, or that is not known."""
    if culprit.brought is None or culprit.beyond is None or culprit.brought >= culprit.beyond:
        return ""
    brought, beyond = apart(culprit.brought, culprit.beyond)
    return f"brought {brought} of {beyond}: the rest came with other commits, before it within the band or after it"


def apart(first: int, second: int) -> tuple[str, str]:
    """Return two growths for people, with their bytes where they would read alike and are not."""
    texts = format_size(first, signed=True), format_size(second, signed=True)
    if texts[0] != texts[1] or first == second:
        return texts
    return f"{texts[0]} ({first:,} B)", f"{texts[1]} ({second:,} B)"
