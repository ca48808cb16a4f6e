"""Opens a merge at fault: searches each branch that it brought in, with the merge itself as that line's bad end.

Only a branch whose tip is good is ruled out. Where a branch cannot be searched, its commits and the merge are suspects:
naming the merge alone would hide commits that were not probed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from oomscope.bisect.lines.culprit import LineAnswer, LineSearcher
from oomscope.bisect.lines.line import Line
from oomscope.bisect.results.result import StepRow, SuspectedChange
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.search.line import Answer, SearchFinding
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError
from oomscope.units import Bytes

_NOTHING = Bytes()


@dataclass(frozen=True)
class Walked:
    """A line that was searched, and with it the branches that merges at fault brought into it."""

    line: Line
    """The innermost line, which has the answer."""
    answer: LineAnswer
    steps: tuple[StepRow, ...]
    """All steps seen, from the outer line's good end to its bad end, each of them once."""
    suspects: tuple[SuspectedChange, ...] = ()
    """What may be at fault instead of the merge that the answer names, where a branch was not ruled out."""


@dataclass(frozen=True)
class MergeOpener:
    """Opens merges at fault."""

    repository: Repository
    searcher: LineSearcher
    paths: tuple[str, ...] = ()
    _branches: dict[tuple[str, str, int], Line | None] = field(default_factory=dict)

    @property
    def branches(self) -> tuple[Line, ...]:
        """The branches that were looked into."""
        return tuple(branch for branch in self._branches.values() if branch is not None)

    @property
    def lines(self) -> tuple[WalkedLine, ...]:
        """The branches that were looked into, as a result lists them."""
        return tuple(branch.document for branch in self.branches)

    def walk(self, line: Line, answer: LineAnswer, good: tuple[Commit, ...] = ()) -> Walked:
        """Return the line and answer inside the merge at fault, as deep as merges go; the given ones elsewhere.

        Args:
            line: was searched.
            answer: how that ended.
            good: the last good commits of the lines into which merges brought this one.
        """
        walked = Walked(line, answer, line.steps())
        if answer.found is None:
            return walked
        if not answer.found.is_culprit:
            return replace(walked, suspects=self._suspects(line, answer.found, good))
        merge = line.commit(answer.found.first_bad)
        if not merge.is_merge:
            return walked
        good = (*good, line.last_commit(answer.found.last_good))
        brought: list[StepRow] = []
        unsure: list[SuspectedChange] = []
        reasons: list[str] = []
        for parent in range(len(merge.parents)):
            tip = self.repository.parent(merge, parent)
            name = f"the branch of {tip.title}, merged by {merge.short},"
            try:
                branch = self.branch(line, answer.found.first_bad, parent)
            except GitError as error:
                reason = "tip of a branch that was not searched"
                unsure.append(SuspectedChange(commit=tip.hash, subject=tip.subject, reason=reason))
                reasons.append(f"a branch merged by {merge.short} cannot be searched: {error}")
                continue
            if branch is None:
                continue
            inside = self.walk(branch, self.searcher.run(branch), good)
            brought += inside.steps if 0 in branch.results else ()
            if inside.answer.found is not None:
                return replace(inside, steps=opened(walked.steps, merge.hash, brought))
            why = inside.answer.reason
            if inside.answer.kind == "no_culprit":
                line.prober.note(f"{name} is not at fault by itself ({why})")
                continue
            until = min([branch.tip, *(place for place in branch.known_bad if place > 0)])
            unsure += self._suspects(branch, SearchFinding(0, until), good)
            reasons.append(f"{name} cannot be ruled out: {why}")
        walked = replace(walked, steps=opened(walked.steps, merge.hash, brought))
        if not unsure:
            return walked
        unsure.append(line.suspects(answer.found)[0])
        return replace(walked, answer=replace(answer, reason="; ".join(reasons)), suspects=tuple(unsure))

    def branch(self, line: Line, position: int, parent: int) -> Line | None:
        """Return the line that the merge at ``position`` brought in by one of its parents; None for nothing.

        It is the same one each time, with what was measured along it.
        """
        merge, good = line.commit(position), line.last_commit(position - 1)
        name = (merge.hash, good.hash, parent)
        if name not in self._branches:
            commits = self.repository.merged_line(merge, parent, good, self.paths)
            branch = Line.of(commits, line.subject, line.prober, merge) if commits else None
            if branch is not None:
                branch.know(branch.last, line.records[position], line.results.get(position))
            self._branches[name] = branch
        return self._branches[name]

    def _suspects(self, line: Line, found: SearchFinding, good: tuple[Commit, ...]) -> tuple[SuspectedChange, ...]:
        """Return the suspects of ``found``, each merge among them after the commits that it brought in.

        What the last good commit and those in ``good`` contain is ruled out.
        """
        seen = {commit.hash for position in line.positions for commit in position}
        ruled_out = (line.last_commit(found.last_good), *good)
        named: list[SuspectedChange] = []
        for position, suspect in zip(found.suspects, line.suspects(found), strict=True):
            for merge in line.positions[position]:
                if not merge.is_merge or merge == line.merge:
                    continue
                brought = [each for each in self.repository.between(ruled_out, merge) if each.hash not in seen]
                seen.update(commit.hash for commit in brought)
                reason = f"not probed; brought in by the merge {merge.short}"
                named += [
                    SuspectedChange(commit=commit.hash, subject=commit.subject, reason=reason)
                    for commit in self._changing(line, brought)
                ]
            named.append(suspect)
        return tuple(named)

    def _changing(self, line: Line, commits: Sequence[Commit]) -> list[Commit]:
        """Return those of ``commits`` that do not measure the same as their first parent."""
        parents = self.repository.read_headers([commit.parents[0] for commit in commits if commit.parents])
        known = {commit.hash: commit for commit in (*parents, *commits)}
        contents = dict(zip(known, line.subject.contents(list(known.values())), strict=True))
        return [each for each in commits if not each.parents or contents[each.hash] != contents[each.parents[0]]]


def ruled_out_by(lines: Sequence[Line], repository: Repository, good: Commit) -> set[str]:
    """Return the hashes of the commits since ``good`` that what was measured along ``lines`` rules out.

    A commit that answered good is not the first bad one. Nor is any that it contains, unless one of those answered bad:
    what is bad is taken to stay so.
    """
    answers: dict[Answer, dict[str, Commit]] = {answer: {} for answer in Answer}
    for line in lines:
        for position, record in line.records.items():
            answers[record.answer] |= {commit.hash: commit for commit in line.positions[position]}
    found: set[str] = set()
    for name, commit in answers[Answer.GOOD].items():
        contained = {name, *(each.hash for each in repository.between((good,), commit))}
        found |= {name} if contained & answers[Answer.BAD].keys() else contained
    return found - answers[Answer.BAD].keys()


def brought_by(branch: Line) -> Bytes:
    """Return the bytes that ``branch`` brought to its merge, as far as they are measured: from beginning to tip."""
    last = branch.last
    before = (place for place in branch.results if place < last and branch.measured(place) is not None)
    until = max(before) if branch.is_end_of_branch(last) else last
    return (branch.measured(until) or Bytes()) - (branch.measured(0) or Bytes())


def opened(
    steps: Sequence[StepRow], merge: str, brought: Sequence[StepRow], beside: Bytes = _NOTHING
) -> tuple[StepRow, ...]:
    """Return ``steps`` with the steps that ``merge`` brought in ahead of its own, which is what is left of it.

    The sum stays; a merge that adds nothing of its own has no row, and a commit that several lines share has one. The
    merge's row counts the commits between the last one measured of what was brought in and the merge.

    Args:
        steps: the rows of a line.
        merge: hash of a merge among them.
        brought: the rows of what it brought in.
        beside: what it brought in besides, which is in no row.
    """
    listed = {row.commit for row in steps}
    new: dict[str | None, StepRow] = {}
    for part in brought:
        if part.commit not in listed:
            new.setdefault(part.commit, part if part.merge else replace(part, merge=merge))
    unmeasured = max((part.commits for part in brought if part.commit == merge), default=1)
    rows: list[StepRow] = []
    for row in steps:
        if row.commit != merge or (not brought and beside.is_nothing):
            rows.append(row)
            continue
        rest = row.delta - sum((part.delta for part in new.values()), start=beside)
        rows += new.values()
        if not rest.is_nothing:
            rows.append(replace(row, delta=rest, commits=max(row.commits, unmeasured), dominant=None))
    return tuple(rows)
