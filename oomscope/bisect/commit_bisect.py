"""``oomscope bisect good..bad`` over commits: the line of first parents, then into the merge at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from oomscope.bisect.commits import Commit, Line, Repository
from oomscope.bisect.growth import grown_sites
from oomscope.bisect.line_search import LineAnswer, LineSearch, Track
from oomscope.bisect.measured import Bytes
from oomscope.bisect.prober import Means, Prober
from oomscope.bisect.reporter import Plan
from oomscope.bisect.request import CommitRequest
from oomscope.bisect.result import BisectResult, CommitCulprit, Evidence, KeyChange, SearchOutcome, StepRow
from oomscope.bisect.rooms import room
from oomscope.bisect.search import Found
from oomscope.bisect.subjects import Subject, subject_of
from oomscope.errors import GitError
from oomscope.probe.result import ProbeResult

if TYPE_CHECKING:
    from oomscope.config.schema import Config

_CLONE = "clone"


def bisect_commits(request: CommitRequest, **means: Unpack[Means]) -> BisectResult:
    """Find the commit of ``request.range`` at fault.

    Args:
        request: what to search.
        means: see :class:`~oomscope.bisect.prober.Means`.

    The user's repository is only read. Clones lie under ``request.places`` and are gone when this returns or raises.

    Raises:
        GitError: the repository or the range cannot be used.
        UsageError: the configuration's path or the harness cannot be.
        InputError: there is no place for clones and results.
        MachineUnfitError: this machine cannot probe.
    """
    repository = Repository.open(request.repo)
    good, bad = repository.resolve(request.range.good), repository.resolve(request.range.bad)
    line = repository.line(good, bad, request.paths)
    request.places.make()
    with room(request.places.checkouts.absolute(), "bisect") as place:
        subject = subject_of(request.subject, repository, place / _CLONE)
        return CommitBisect(request, repository, subject, Prober.of(request, **means), good, bad, line).run()


@dataclass(frozen=True)
class Walked:
    """A line that was searched, and with it the lines that merges at fault brought into it."""

    search: LineSearch
    """The innermost search, which has the answer."""
    answer: LineAnswer
    steps: tuple[StepRow, ...]
    """All steps seen, from the outer line's good end to its bad end, each of them once."""


@dataclass
class CommitBisect:
    """A search over commits, with everything that it needs at hand."""

    request: CommitRequest
    repository: Repository
    subject: Subject
    prober: Prober
    good: Commit
    bad: Commit
    line: Line

    def run(self) -> BisectResult:
        """Search the line, then what the merge at fault brought in, and return the answer."""
        for note in self.line.notes:
            self.prober.note(note)
        track = Track.of(self.line, self.subject)
        candidates = self.repository.count(self.good, self.bad, first_parent=self.request.first_parent)
        base = BisectResult(
            axis="commits",
            outcome="inconclusive",
            message="",
            good=self.good.hash,
            bad=self.bad.hash,
            bad_class=str(self.request.bad),
            candidates=candidates,
            on_line=len(self.line.commits),
            considered=len(track.chosen),
            paths=self.request.paths,
        )
        self._announce(track, base)
        search = LineSearch(track, self.subject, self.prober)
        walked = self._into_merges(search, search.run())
        answered = self._with_answer(base, walked.search, walked.answer)
        return replace(answered, steps=walked.steps, probes=tuple(self.prober.records), notes=tuple(self.prober.notes))

    def _announce(self, track: Track, base: BisectResult) -> None:
        more_if = []
        if track.probes_more:
            more_if.append(f"the culprit touches none of the chosen paths (up to {track.probes_more} more)")
        if not self.request.first_parent and any(commit.is_merge for commit in self.line.commits):
            more_if.append("a merge is at fault (what it brought in is searched as well)")
        self.prober.reporter.planned(
            Plan(
                title=f"{self.repository.path}: {self.good.short}..{self.bad.short}, bad is {self.request.bad}",
                good=f"{self.good.short} {self.good.subject}",
                bad=f"{self.bad.short} {self.bad.subject}",
                candidates=base.candidates,
                considered=base.considered,
                probes_at_most=track.probes_at_most,
                more_if=tuple(more_if),
                notes=self.line.notes,
            )
        )

    def _into_merges(self, search: LineSearch, answer: LineAnswer) -> Walked:
        """Return the search and answer inside the merge at fault, as deep as merges go; the given ones elsewhere."""
        walked = Walked(search, answer, search.steps())
        merge = self._merge_at_fault(search, answer)
        if merge is None:
            return walked
        brought: list[StepRow] = []
        for parent in range(1, len(merge.parents)):
            inside = self._into_branch(merge, parent)
            if inside is None:
                continue
            brought += inside.steps
            if inside.answer.found is not None:
                walked = inside
                break
            if inside.answer.kind == "out_of_time":
                self.prober.note(f"the deadline passed before the branch merged by {merge.short} was looked into")
                break
            self.prober.note(f"the branch merged by {merge.short} is not at fault by itself ({inside.answer.reason})")
        return replace(walked, steps=opened(search.steps(), merge.hash, brought))

    def _merge_at_fault(self, search: LineSearch, answer: LineAnswer) -> Commit | None:
        if self.request.first_parent or answer.kind != "found" or answer.found is None:
            return None
        suspects = [search.commit(position) for position in answer.found.suspects]
        if len(suspects) > 1:
            for merge in filter(lambda commit: commit.is_merge, suspects):
                self.prober.note(f"{merge.short} is a merge and stands for all that it brought in")
            return None
        return suspects[0] if suspects[0].is_merge else None

    def _into_branch(self, merge: Commit, parent: int) -> Walked | None:
        """Search the line that ``merge`` brought in by one of its parents; None where there is none."""
        try:
            line = self.repository.merged_line(merge, parent, self.request.paths)
        except GitError as error:
            self.prober.note(f"what {merge.short} brought in cannot be searched: {error}")
            return None
        if line is None:
            return None
        inner = LineSearch(
            Track.of(line, self.subject),
            self.subject,
            self.prober,
            good_role="merged branch",
            bad_role="merged branch",
        )
        return self._into_merges(inner, inner.run())

    def _with_answer(self, base: BisectResult, search: LineSearch, answer: LineAnswer) -> BisectResult:
        if answer.found is not None:
            return self._with_found(base, search, answer.found, answer.reason)
        outcome: SearchOutcome = "inconclusive"
        if answer.kind in {"no_culprit", "ends_invalid"}:
            outcome = "no_culprit" if answer.kind == "no_culprit" else "ends_invalid"
        return replace(base, outcome=outcome, message=answer.reason)

    def _with_found(self, base: BisectResult, search: LineSearch, found: Found, reason: str) -> BisectResult:
        before, after = search.results[found.last_good], search.results[found.first_bad]
        change = search.bytes_at(found.first_bad) - search.bytes_at(found.last_good)
        sites = grown_sites(before, after)
        base = replace(
            base,
            change=change,
            sites=sites,
            last_good=self._evidence(search.last_commit(found.last_good), before),
            first_bad=self._evidence(search.commit(found.first_bad), after),
        )
        if found.kind == "suspects":
            suspects = search.suspects(found)
            message = f"one of {len(suspects)} commits is at fault: {reason or 'the others cannot be tested'}"
            return replace(base, outcome="suspects", suspects=suspects, message=message)
        commit = search.commit(found.first_bad)
        culprit = CommitCulprit(
            commit=commit.hash,
            subject=commit.subject,
            author=commit.author,
            date=commit.date,
            delta=change,
            sites=sites,
            keys=changed_keys(self.subject.config(search.commit(found.last_good)), self.subject.config(commit)),
        )
        message = f"{commit.short} is the first bad commit: {search.records[found.first_bad].reason}"
        return replace(base, outcome="culprit", culprit=culprit, message=message)

    def _evidence(self, commit: Commit, result: ProbeResult) -> Evidence:
        return Evidence(name=commit.hash, result=result, commands=self.subject.commands(commit))


def opened(steps: Sequence[StepRow], merge: str, brought: Sequence[StepRow]) -> tuple[StepRow, ...]:
    """Return ``steps`` with the steps that ``merge`` brought in ahead of its own, which is what is left of it.

    The sum stays; a merge that adds nothing of its own has no row, and a commit that several lines share has one.
    """
    listed = {row.commit for row in steps}
    new: dict[str | None, StepRow] = {}
    for part in brought:
        if part.commit not in listed:
            new.setdefault(part.commit, part if part.merge else replace(part, merge=merge))
    parts = list(new.values())
    rows: list[StepRow] = []
    for row in steps:
        if row.commit != merge or not brought:
            rows.append(row)
            continue
        rest = row.delta - sum((part.delta for part in parts), start=Bytes())
        rows += parts
        rows += [replace(row, delta=rest)] if rest != Bytes() else []
    return tuple(rows)


def changed_keys(good: Config | None, bad: Config | None) -> tuple[KeyChange, ...]:
    """Return the keys whose values differ between two configurations; none where one is missing."""
    if good is None or bad is None:
        return ()
    before, after = good.flat(), bad.flat()
    return tuple(KeyChange(key=key, good=before[key], bad=after[key]) for key in after if after[key] != before[key])
