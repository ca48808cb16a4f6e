"""``oomscope bisect good..bad`` over commits: the line of first parents, then into the merge at fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Unpack

from oomscope.bisect.changes.excerpts import with_change
from oomscope.bisect.changes.lock_files import is_readable
from oomscope.bisect.changes.narrow import TurningPoint, narrow
from oomscope.bisect.lines.culprit import LineSearcher, is_started
from oomscope.bisect.lines.good_end import find_good_end
from oomscope.bisect.lines.line import Known, Line
from oomscope.bisect.lines.merges import MergeOpener, Walked, ruled_out_by
from oomscope.bisect.lines.steps import StepWalk
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.growth import grown_sites
from oomscope.bisect.results.predicate import bad_text
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import (
    BisectResult,
    CommitCulprit,
    KeyChange,
    ProbeEvidence,
    SearchOutcome,
    SuspectedChange,
)
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.repeats import percent
from oomscope.bisect.search_setup import journalled, open_repository, prepared
from oomscope.bisect.targets.subjects import ConfigInRepo, Subject, path_in_repo
from oomscope.bisect.vcs.repository import Commit, CommitLine, Repository
from oomscope.bisect.vcs.uncommitted import has_uncommitted_changes
from oomscope.errors import GitError
from oomscope.probe.job import CommandTarget
from oomscope.probe.result import ProbeResult

if TYPE_CHECKING:
    from oomscope.config.schema import Config

_PACKAGES = re.compile(
    r"(^|/)([^/]*requirements[^/]*(/[^/]+)?\.txt|[^/]*\.lock|pylock[^/]*\.toml|pyproject\.toml|environment\.ya?ml)$"
)
"""Files that say which packages a program needs."""
_SHOWN = 3
"""Most such files named in a note."""


@journalled("commits")
def bisect_commits(request: CommitRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the commit of ``request.range`` at fault; where it has no good end, one is looked for first.

    Args:
        request: what to search.
        services: see :class:`~oomscope.bisect.run.prober.Services`.

    The user's repository is only read. Clones lie under ``request.state_dirs`` until this returns or raises.

    Raises:
        GitError: the repository or the range cannot be used.
        UsageError: the configuration's path or the harness cannot be used, or results would be kept in git's directory.
        ConfigError: an override is wrong for an end that is measured without it.
        InputError: clones and results cannot be kept there.
        MachineUnfitError: this machine cannot probe.
    """
    repository = open_repository(request)
    bad = repository.resolve(request.range.bad)
    if not request.range.is_open:
        good = repository.resolve(request.range.good)
        line = repository.line(good, bad, request.paths)
        with prepared(request, repository, (good, bad), services) as (subject, prober):
            return CommitBisect(request, repository, subject, prober, good, bad, line).run()
    with prepared(request, repository, (bad,), services) as (subject, prober):
        sought = find_good_end(repository, bad, subject, prober, request.noise)
        if sought.good is not None:
            line = repository.line(sought.good, bad, request.paths)
            return CommitBisect(request, repository, subject, prober, sought.good, bad, line, sought.known).run()
        candidates = repository.count(sought.oldest, bad, first_parent=request.first_parent)
        result = BisectResult(
            axis="commits",
            outcome=sought.outcome,
            message=sought.reason,
            good=sought.oldest.hash,
            bad=bad.hash,
            bad_class=str(request.bad),
            candidates=candidates,
            on_line=candidates,
            considered=candidates,
        )
        return prober.completed(result)


@dataclass
class CommitBisect:
    """A search over commits, with everything that it needs at hand."""

    request: CommitRequest
    repository: Repository
    subject: Subject
    prober: Prober
    good: Commit
    bad: Commit
    line: CommitLine
    known: Known = field(default_factory=dict)
    """Answers from before, by hash."""

    def __post_init__(self) -> None:
        """Make the searcher of all lines."""
        self._searcher = LineSearcher(self.request.noise)

    def run(self) -> BisectResult:
        """Search the line, then what the merge at fault brought in, and return the answer."""
        for note in (*self.line.notes, *_uncommitted(self.repository, self.bad)):
            self.prober.note(note)
        line = Line.of(self.line, self.subject, self.prober)
        line.recall(self.known)
        base = BisectResult(
            axis="commits",
            outcome="inconclusive",
            message="",
            good=self.good.hash,
            bad=self.bad.hash,
            bad_class=str(self.request.bad),
            candidates=self.repository.count(self.good, self.bad, first_parent=self.request.first_parent),
            on_line=len(self.line.commits),
            considered=len(line.chosen),
            paths=self.request.paths,
        )
        self._announce(line, base)
        answer = self._searcher.run(line)
        walked, opener = Walked(line, answer, line.steps()), None
        if not self.request.first_parent:
            opener = MergeOpener(self.repository, self._searcher, self.request.paths)
            walked = opener.walk(line, answer)
        answered = replace(self._with_answer(base, walked), steps=walked.steps)
        if self.request.steps is not None:
            noise = self._searcher.noise_of(line)
            found = StepWalk(self.request.steps, opener, noise).walk(line)
            answered = answered if found is None else replace(answered, steps=found[0], waterfall=found[1])
            if answered.suspects and noise is None:
                answered = self._without_ruled_out(answered, walked, (line, *(opener.branches if opener else ())))
        if answered.outcome == "no_culprit":
            for note in self._packages_not_installed():
                self.prober.note(note)
        lines = (line.document, *(opener.lines if opener else ()))
        return self.prober.completed(replace(answered, lines=lines))

    def _announce(self, line: Line, base: BisectResult) -> None:
        request, at_most, more_if = self.request, line.probes_at_most, []
        if line.probes_more:
            outside = "the culprit touches none of the chosen paths or its parent cannot be tested"
            more_if.append(f"{outside} (up to {line.probes_more} more)")
        if request.hunks:
            more_if.append("a culprit is found (its hunks are searched too)")
        if not request.first_parent and any(commit.is_merge for commit in self.line.commits):
            more_if.append("a merge is at fault (the merged branches are searched too)")
        if request.noise is None and is_started(line.experiment(0)):
            more_if.append("the program reads no value of the card (the two probes that decide are repeated)")
        if request.noise is not None and request.noise.may_repeat:
            more_if.append(f"no answer is {percent(request.noise.confidence)} sure by then (commits are probed again)")
        if request.steps is not None:
            if request.steps.looks:
                at_most = min(at_most + request.steps.looks, line.last + 1)
            if at_most <= line.last:
                each = Search.over(line.last).probes_left
                more_if.append(f"the bytes change with more than one commit (up to {each} more for each further one)")
        ends = f"{self.good.short}..{self.bad.short}"
        self.prober.announce(
            SearchPlan(
                title=f"{self.repository.path}: {ends}, bad = {bad_text(str(request.bad))}",
                good=self.good.title,
                bad=self.bad.title,
                candidates=base.candidates,
                considered=base.considered,
                probes_at_most=at_most,
                more_if=tuple(more_if),
                notes=self.line.notes,
                line=line.document,
            )
        )

    def _with_answer(self, base: BisectResult, walked: Walked) -> BisectResult:
        answer = walked.answer
        if answer.found is not None:
            return self._with_found(base, walked, answer.found)
        outcomes: dict[str, SearchOutcome] = {"no_culprit": "no_culprit", "ends_invalid": "ends_invalid"}
        outcome = outcomes.get(answer.kind, "inconclusive")
        remedy = self._remedy_for_files(walked.line) if outcome == "ends_invalid" else None
        return replace(base, outcome=outcome, message=answer.reason, remedy=remedy)

    def _remedy_for_files(self, line: Line) -> str | None:
        """Return what to do about an untestable end of --config, which only reads a file: nothing can be repaired."""
        choice = self.request.subject
        if not isinstance(choice, ConfigInRepo):
            return None
        ends = ((0, self.good, "a later good end (or --find-good)"), (line.last, self.bad, "an earlier bad end"))
        for place, commit, other in ends:
            if place in line.records and line.records[place].answer is Answer.UNTESTABLE:
                is_there = any(self.repository.objects_at((commit,), path_in_repo(choice.path)))
                files = f"{self.good.short}:OLD-NAME..{self.bad.short}:NEW-NAME"
                return f"name {other}" + ("" if is_there else f"; if the file was renamed, give two files: {files}")
        return None

    def _with_found(self, base: BisectResult, walked: Walked, found: SearchFinding) -> BisectResult:
        line = walked.line
        before, after = line.results[found.last_good], line.results[found.first_bad]
        change = line.bytes_at(found.first_bad) - line.bytes_at(found.last_good)
        sites = grown_sites(before, after, line.sources(found.last_good, found.first_bad))
        base = replace(
            base,
            change=change,
            sites=sites,
            confidence=walked.answer.confidence,
            last_good=self._evidence(line.last_commit(found.last_good), before),
            first_bad=self._evidence(
                line.commit(found.first_bad), self.prober.with_cures(line.experiment(found.first_bad), after)
            ),
        )
        commit = line.commit(found.first_bad)
        if walked.suspects or not found.is_culprit:
            return self._with_suspects(base, walked, walked.suspects or line.suspects(found))
        culprit = CommitCulprit(
            commit=commit.hash,
            subject=commit.subject,
            author=commit.author,
            date=commit.date,
            delta=change,
            sites=sites,
            keys=changed_keys(self.subject.config(line.commit(found.last_good)), self.subject.config(commit)),
        )
        before_it = line.last_commit(found.last_good)
        culprit = with_change(culprit, self.repository, before_it, self.subject.source(commit))
        records = (line.records[found.last_good], line.records[found.first_bad])
        if self.request.hunks:
            turn = TurningPoint(before=before_it, after=commit, records=records, results=(before, after))
            culprit = narrow(
                culprit,
                turn,
                self.repository,
                self.subject,
                self.prober,
                noise=self.request.noise or self._searcher.noise_of(line),
            )
        confidence = walked.answer.confidence
        sureness = "" if confidence is None else f", {percent(confidence)} sure"
        message = f"{commit.short} is the first bad commit{sureness}: {records[1].reason}"
        return replace(base, outcome="culprit", culprit=culprit, message=message)

    def _with_suspects(self, base: BisectResult, walked: Walked, suspects: tuple[SuspectedChange, ...]) -> BisectResult:
        first_bad = walked.line.commit(walked.answer.found.first_bad).short if walked.answer.found else self.bad.short
        reason = walked.answer.reason or f"those before {first_bad} cannot be tested"
        message = f"one of {len(suspects)} commits is at fault: {reason}"
        if len(suspects) == 1:
            message = f"only {(suspects[0].commit or '')[:10]} is left: {reason}; all others are ruled out"
        return replace(base, outcome="suspects", suspects=suspects, message=message)

    def _without_ruled_out(self, answered: BisectResult, walked: Walked, lines: Sequence[Line]) -> BisectResult:
        """Return ``answered`` without the suspects that the walk along the steps has ruled out."""
        ruled_out = ruled_out_by(lines, self.repository, self.good)
        left = tuple(suspect for suspect in answered.suspects if suspect.commit not in ruled_out)
        return self._with_suspects(answered, walked, left) if left else answered

    def _packages_not_installed(self) -> Iterator[str]:
        """Yield a note if files that name packages differ between the ends, and no probe installed what they name."""
        choice = self.request.subject
        if isinstance(choice, ConfigInRepo) or isinstance(choice.target, CommandTarget):
            return
        try:
            found = [path for path in self.repository.differing(self.good, self.bad) if _PACKAGES.search(path)]
        except GitError:
            return
        if found and not self.request.preparation.setup:
            names = ", ".join(found[:_SHOWN]) + (", …" if found[_SHOWN:] else "")
            read = next(filter(is_readable, found), None)
            lists = f"copies of both versions of {read}" if read else "the output of pip freeze in two environments"
            yield (
                f"good and bad differ in {names}, but oomscope installs nothing: every commit ran with the packages "
                f"installed here; --axis environment --packages A..B compares {lists}"
            )

    def _evidence(self, commit: Commit, result: ProbeResult) -> ProbeEvidence:
        return ProbeEvidence(name=commit.hash, result=result, commands=self.subject.commands(commit))


def changed_keys(good: Config | None, bad: Config | None) -> tuple[KeyChange, ...]:
    """Return the keys whose values differ between two configurations; none where one is missing."""
    if good is None or bad is None:
        return ()
    before, after = good.flat(), bad.flat()
    return tuple(KeyChange(key=key, good=before[key], bad=after[key]) for key in after if after[key] != before[key])


def _uncommitted(repository: Repository, bad: Commit) -> Iterator[str]:
    """Yield a note if the bad end is checked out and the work tree has uncommitted changes."""
    try:
        if repository.resolve("HEAD").hash == bad.hash and has_uncommitted_changes(repository.path):
            yield "uncommitted changes in the work tree are not searched"
    except (GitError, OSError):  # a bare repository has no work tree
        return
