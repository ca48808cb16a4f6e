"""The sentences of the gate, and the shell commands that go on from a night.

A command is whole: a reader pastes it into a shell and has to add nothing. Its paths count from the folder in which it
is pasted; in reports that are read on another machine, from the root of the suite's repository.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import CaseResult, Culprit, GateResult, MeasuredCommit, Place, with_variables
from oomscope.gate.night.status import GRAVITY, Status
from oomscope.gate.suite.identity import baseline_beside
from oomscope.gate.suite.metrics import METRICS
from oomscope.report.sentences import count, short_hash, shortened
from oomscope.units import format_size

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
    reason = case.reason or (exact_text(row) if row is not None else "")
    return f"{case.status}: {reason}" if reason else str(case.status)


def case_text(case: CaseResult) -> str:
    """Return the headline of a case, and whose commit it was."""
    culprit = f"; {culprit_text(case.culprit)}" if case.culprit is not None and case.culprit.commit else ""
    return f"{headline(case)}{culprit}"


def commit_text(standing: MeasuredCommit | None, width: int | None = None) -> str:
    """Return a commit with a star where files differed from it, and its subject, cut to ``width``; empty for none."""
    if standing is None:
        return ""
    subject = standing.subject if width is None else shortened(standing.subject, width)
    return f"{short_hash(standing.commit)}{'*' if standing.dirty else ''} {subject}"


def heading(night: GateResult) -> str:
    """Return ``RED, 3 cases: 1 worse, 2 same``, and whether it was interrupted."""
    return f"{night.ruling.word}{', interrupted' if night.interrupted else ''}, {tally(night)}"


def tally(night: GateResult) -> str:
    """Return ``3 cases: 1 worse, 2 same``."""
    statuses = [case.status for case in night.cases]
    parts = ", ".join(f"{statuses.count(status)} {status}" for status in GRAVITY if status in statuses)
    return f"{count(len(statuses), 'case')}: {parts}"


_UNANSWERED = {
    Status.DEFECT: "internal error: report it with the line under Remarks; the other cases were measured",
    Status.UNUSABLE: "unusable: fix what the remark names, in the suite or in the configuration",
    Status.UNFIT: "unfit: oomscope doctor says what this machine lacks",
    Status.UNMEASURED: "nothing measured: take the metric out of the suite, or let the case run to its end",
}
"""Advice for cases that say nothing of memory, by status."""


def suite_path(night: GateResult) -> str:
    """Return what the suite is called in every checkout: its path from the root of its repository, with slashes."""
    return night.home.path if night.home is not None else Path(night.suite).name


def place_of(case: CaseResult, night: GateResult) -> Place:
    """Return the line for ``case``: of code where the night knows one in the suite's repository, else of the suite."""
    return case.place or Place(path=suite_path(night), line=max(1, case.line))


@dataclass(frozen=True, kw_only=True)
class Commands:
    """The commands of one night."""

    suite: str
    baseline: str = ""
    """The baseline; empty for the one beside the suite."""
    variables: Mapping[str, str]

    @classmethod
    def of(cls, night: GateResult) -> Commands:
        """Return those for the root of a checkout; outside of git, where there is only one, for any folder."""
        if night.home is None:
            return cls.seen_from(night, None)
        return cls.seen_from(night, Path(night.suite.removesuffix(suite_path(night))))

    @classmethod
    def seen_from(cls, night: GateResult, folder: Path | None) -> Commands:
        """Return those for ``folder``; for any folder where there is none."""
        suite, baseline = Path(night.suite), Path(night.baseline)
        is_beside = baseline in {baseline_beside(suite), Path(baseline_beside(suite).name)}
        return cls(
            suite=_path(suite, folder),
            baseline="" if is_beside else _path(baseline, folder),
            variables=night.variables,
        )

    def run(self, names: Sequence[str], *options: str) -> str:
        """Return the command that measures the cases ``names`` again, all without any."""
        return self._command("run", *_each("--case", names), *options)

    def update(self, names: Sequence[str] = (), *, accept: Sequence[str] = ()) -> str:
        """Return the command that accepts what is new or better of the cases ``names``, and ``accept`` as they are."""
        return self._command("update", *_each("--case", (*names, *accept)), *_each("--accept", accept))

    def calibrate(self, names: Sequence[str]) -> str:
        """Return the command that writes bands for the cases ``names``."""
        return self._command("calibrate", *_each("--case", names), "--write")

    def _command(self, verb: str, *words: str) -> str:
        baseline = ("--baseline", self.baseline) if self.baseline else ()
        return with_variables(self.variables, shlex.join(["oomscope", "gate", verb, self.suite, *words, *baseline]))


def _each(option: str, names: Sequence[str]) -> list[str]:
    return [word for name in names for word in (option, name)]


def _path(path: Path, folder: Path | None) -> str:
    """Return ``path`` as a word that no command takes for an option."""
    text = str(path.relative_to(folder)) if folder is not None and path.is_relative_to(folder) else str(path)
    return f"./{text}" if text.startswith("-") else text


class Step(NamedTuple):
    """What to do next."""

    text: str
    commands: tuple[str, ...] = ()
    """Shell commands that carry out the step."""


def next_steps(night: GateResult, commands: Commands) -> list[Step]:
    """Return what to do about the cases that are not as expected, one step for each kind."""
    named = {status: [case.name for case in night.cases if case.status is status] for status in Status}
    left = named.pop(Status.UNMEASURED) if night.interrupted else []
    steps = [Step("interrupted: measure what is left", (commands.run(_few(left)),))] if left else []
    steps += [Step(text) for status, text in _UNANSWERED.items() if named.get(status)]
    unexplained = [case.name for case in night.cases if case.culprit and case.culprit.is_unexplained]
    if worse := [name for name in named[Status.WORSE] if name not in unexplained]:
        steps.append(_worse(worse, night, commands))
    if unexplained:
        said = "worse, and no commit explains it: find what varies or changed; set bands, or accept it"
        then = (commands.calibrate(_few(unexplained)), _accepting(unexplained, commands))
        steps.append(Step(f"{said}{_by_name(unexplained)}", then))
    if new := [*named[Status.NO_BASELINE], *named[Status.INCOMPATIBLE]]:
        steps.append(Step("no baseline for this: accept what is measured", (commands.update(_few(new)),)))
    if better := [case.name for case in night.cases if case.status is Status.BETTER]:
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
    """Return what to do about cases that are worse; a search is for those that are so in what it can search for."""
    known = [case.name for case in night.cases if case.name in names and (case.ran_out or case.searched)]
    if not known or any(case.culprit for case in night.cases):
        return Step(f"worse: fix it, or accept it{_by_name(names)}", (_accepting(names, commands),))
    found = commands.run(_few(known), "--bisect")
    return Step(f"worse: find the commit, or accept it{_by_name(names)}", (found, _accepting(names, commands)))


def _accepting(names: list[str], commands: Commands) -> str:
    return commands.update(accept=names if len(names) <= NAMED else names[:1])


def _by_name(names: list[str]) -> str:
    """Return the clause that each of many cases is accepted by its own name, as in the command."""
    return "" if len(names) <= NAMED else f" by its name, as this first of {len(names)}"


def _few(names: list[str]) -> list[str]:
    """Return the names that a command has: none, which stands for all cases, where there are many."""
    return names if len(names) <= NAMED else []


def _unwatched(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    of_more = f" and {more} more" if more > 0 else ""
    named = ", ".join(names[:NAMED])
    return f"not measured, since only the baseline has them: {named}{of_more}; oomscope gate update removes them"


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
    """Return how little of the growth came with the commit; empty where all of it did, or that is not known."""
    if culprit.brought is None or culprit.beyond is None or culprit.brought >= culprit.beyond:
        return ""
    brought, beyond = distinct_changes(culprit.brought, culprit.beyond)
    return f"brought {brought} of {beyond}: the rest came with other commits, before it within the band or after it"


def distinct_changes(first: int, second: int) -> tuple[str, str]:
    """Return two growths for people, with their bytes where they would read alike and are not."""
    texts = format_size(first, signed=True), format_size(second, signed=True)
    if texts[0] != texts[1] or first == second:
        return texts
    return f"{texts[0]} ({first:,} B)", f"{texts[1]} ({second:,} B)"
