"""Opens a merge at fault: searches each line that it brought in, with the merge itself as that line's bad end.

Only a line whose tip is good is acquitted. Where a line can be searched neither from a good beginning nor for want of
time, its commits and the merge are suspects: naming the merge alone would hide commits that were not probed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from oomscope.bisect.lines.line_search import LineAnswer, LineSearch
from oomscope.bisect.lines.probed_line import BRANCH_ENDS, LineEnds, ProbedLine, Track
from oomscope.bisect.results.result import ProbeRecord, StepRow, SuspectedChange
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.search.line import Answer, SearchFinding
from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import CommitLine, Repository
from oomscope.errors import GitError

_NOTHING = Bytes()


@dataclass(frozen=True)
class Walked:
    """A line that was searched, and with it the lines that merges at fault brought into it."""

    search: LineSearch
    """The innermost search, which has the answer."""
    answer: LineAnswer
    steps: tuple[StepRow, ...]
    """All steps seen, from the outer line's good end to its bad end, each of them once."""
    suspects: tuple[SuspectedChange, ...] = ()
    """What may be at fault instead of the merge that the answer names, where not all it brought in was acquitted."""


class BranchSearch(LineSearch):
    """A search along what a merge brought in. Its last commit is the merge, whose answer is known already."""

    @property
    def tip(self) -> int:
        """The position of the last commit before the merge."""
        last = self.track.last
        return last if len(self.track.positions[last]) > 1 else last - 1

    @property
    def is_unchanged(self) -> bool:
        """Whether no commit before the merge changes what is measured."""
        return self.track.last == 0 or self.tip == 0

    @property
    def ends(self) -> LineEnds:
        """The beginning and the merge."""
        return BRANCH_ENDS

    @property
    def checked(self) -> tuple[int, ...]:
        """The tip, which acquits the line where it is good, then the beginning."""
        return self.tip, 0

    @property
    def merge(self) -> Commit:
        """The merge that brought the line in."""
        return self.last_commit(self.track.last)

    @property
    def commits_text(self) -> str:
        """What people call the commits of this line."""
        return f"commits of the branch merged by {self.merge.short}"

    def run(self) -> LineAnswer:
        """Check tip and beginning, search between beginning and merge, and return the answer.

        A good tip is ``no_culprit``. A bad beginning is ``ends_invalid``. One that cannot be tested is only one more
        untestable position: a good commit after it will do, and without one the answer is ``ends_invalid`` as well.
        """
        if self.is_unchanged:
            return LineAnswer(kind="no_culprit", reason="nothing on it changes what is measured")
        try:
            tip = self.records.get(self.tip) or self._probe_end(self.tip)
            if tip.answer is Answer.GOOD:
                with contextlib.suppress(OutOfTimeError):  # only the steps need the beginning
                    self._probe_end(0)
                return LineAnswer(kind="no_culprit", reason=f"its tip is good: {tip.reason}")
            beginning = self._probe_end(0)
            if beginning.answer is Answer.BAD:
                return LineAnswer(kind="ends_invalid", reason=f"its beginning is bad already: {beginning.reason}")
            found = self._between_ends()
        except OutOfTimeError:
            stopped = self._stopped()
            is_bounded = stopped.found is not None and self.is_bounded(stopped.found)
            return LineAnswer(
                kind="out_of_time", reason="the deadline passed", found=stopped.found if is_bounded else None
            )
        if not self.is_bounded(found):
            return LineAnswer(kind="ends_invalid", reason=f"its beginning cannot be tested: {beginning.reason}")
        return LineAnswer(kind="found", found=found)

    def measure_ends(self) -> None:
        """Probe the beginning and the tip, as far as they are not known.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        for position in (0, self.tip):
            if position not in self.records:
                self._probe_end(position)

    def _probe_end(self, position: int) -> ProbeRecord:
        self.foresee(self.tip, 0)
        return self.probe(position, "merged branch")

    @property
    def brought(self) -> Bytes:
        """The bytes that the line brought to the merge, as far as they are measured: from its beginning to its tip."""
        last = self.track.last
        before = (place for place in self.results if place < last and self.measured(place) is not None)
        until = max(before) if self.is_end_of_branch(last) else last
        return (self.measured(until) or Bytes()) - (self.measured(0) or Bytes())

    def all_before_merge(self) -> SearchFinding:
        """Return all positions before the merge up to the first that is known to be bad."""
        until = min([self.tip, *(place for place in self.known_bad if place > 0)])
        return SearchFinding(kind="suspects", last_good=0, suspects=tuple(range(1, until + 1)))


def _run(search: LineSearch) -> LineAnswer:
    return search.run()


@dataclass(frozen=True)
class MergeOpener:
    """Opens merges at fault.

    Args:
        repository: where they are.
        paths: the paths that were chosen.
    """

    repository: Repository
    paths: tuple[str, ...] = ()
    run: Callable[[LineSearch], LineAnswer] = _run
    """Searches a line that was brought in."""
    _branches: dict[tuple[str, str, int], BranchSearch | None] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[WalkedLine, ...]:
        """The lines that merges brought in and that were looked into."""
        return tuple(
            WalkedLine.of(branch.track.positions, branch.track.chosen, merge)
            for (merge, _, _), branch in self._branches.items()
            if branch is not None
        )

    def walk(self, search: LineSearch, answer: LineAnswer, good: tuple[Commit, ...] = ()) -> Walked:
        """Return the search and answer inside the merge at fault, as deep as merges go; the given ones elsewhere.

        Args:
            search: along which line.
            answer: how it ended.
            good: the last good commits of the lines into which merges brought this one.
        """
        walked = Walked(search, answer, search.steps())
        if answer.found is None:
            return walked
        if answer.found.kind == "suspects":
            return replace(walked, suspects=self._suspects(search, answer.found, good))
        merge = search.commit(answer.found.first_bad)
        if not merge.is_merge:
            return walked
        good = (*good, search.last_commit(answer.found.last_good))
        brought: list[StepRow] = []
        unsure: list[SuspectedChange] = []
        reasons: list[str] = []
        for parent in range(len(merge.parents)):
            try:
                branch = self.branch(search, answer.found.first_bad, parent)
            except GitError as error:
                tip = self.repository.parent(merge, parent)
                unsure.append(
                    SuspectedChange(commit=tip.hash, subject=tip.subject, reason="stands for a branch not searched")
                )
                reasons.append(f"what {merge.short} brought in cannot be searched: {error}")
                continue
            if branch is None:
                continue
            inside = self.walk(branch, self.run(branch), good)
            brought += inside.steps if 0 in branch.results else ()
            if inside.answer.found is not None:
                return replace(inside, steps=opened(walked.steps, merge.hash, brought))
            if inside.answer.kind == "no_culprit":
                why = inside.answer.reason
                search.prober.note(f"the branch merged by {merge.short} is not at fault by itself ({why})")
                continue
            unsure += self._suspects(branch, branch.all_before_merge(), good)
            reasons.append(f"the branch merged by {merge.short} cannot be acquitted: {inside.answer.reason}")
        walked = replace(walked, steps=opened(walked.steps, merge.hash, brought))
        if not unsure:
            return walked
        unsure.append(search.suspects(answer.found)[0])
        return replace(walked, answer=replace(answer, reason="; ".join(reasons)), suspects=tuple(unsure))

    def _suspects(
        self, search: ProbedLine, found: SearchFinding, good: tuple[Commit, ...]
    ) -> tuple[SuspectedChange, ...]:
        return merge_suspects(self.repository, search, found, good=good)

    def branch(self, search: ProbedLine, position: int, parent: int) -> BranchSearch | None:
        """Return the search of what the merge at ``position`` brought in by one of its parents; None for nothing.

        It is the same one each time, with what it has measured.

        Raises:
            GitError: that cannot be searched.
        """
        merge, good = search.commit(position), search.last_commit(position - 1)
        name = (merge.hash, good.hash, parent)
        if name not in self._branches:
            line = self.repository.merged_line(merge, parent, good, self.paths)
            self._branches[name] = branch = _branch(search, line) if line else None
            if branch is not None:
                branch.know(branch.track.last, search.records[position], search.results.get(position))
        return self._branches[name]


def _branch(search: ProbedLine, line: CommitLine) -> BranchSearch:
    return BranchSearch(Track.of(line, search.subject), search.subject, search.prober)


def opened(
    steps: Sequence[StepRow], merge: str, brought: Sequence[StepRow], beside: Bytes = _NOTHING
) -> tuple[StepRow, ...]:
    """Return ``steps`` with the steps that ``merge`` brought in ahead of its own, which is what is left of it.

    The sum stays; a merge that adds nothing of its own has no row, and a commit that several lines share has one. What
    is left stands for as many commits as there are between the last one measured of what was brought in and the merge.

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
    parts = list(new.values())
    unmeasured = max((part.commits for part in brought if part.commit == merge), default=1)
    rows: list[StepRow] = []
    for row in steps:
        if row.commit != merge or (not brought and beside.is_nothing):
            rows.append(row)
            continue
        rest = row.delta - sum((part.delta for part in parts), start=beside)
        rows += parts
        if not rest.is_nothing:
            rows.append(replace(row, delta=rest, commits=max(row.commits, unmeasured), dominant=None))
    return tuple(rows)


def merge_suspects(
    repository: Repository,
    search: ProbedLine,
    found: SearchFinding,
    *,
    good: Sequence[Commit] = (),
) -> tuple[SuspectedChange, ...]:
    """Return the suspects of ``found``, each merge among them after what it brought in that changes what is measured.

    Args:
        repository: where they are.
        search: along which line.
        found: the positions on it that could not be told apart.
        good: commits that are known to be good, beside the last good one of the line: what they contain is acquitted.
    """
    on_line = {commit.hash for position in search.track.positions for commit in position}
    acquitted = (search.last_commit(found.last_good), *good)
    named: list[SuspectedChange] = []
    for position, suspect in zip(found.suspects, search.suspects(found), strict=True):
        for merge in search.track.positions[position]:
            if not merge.is_merge or merge == search.merge:
                continue
            brought = [commit for commit in repository.between(acquitted, merge) if commit.hash not in on_line]
            on_line.update(commit.hash for commit in brought)
            named += [
                SuspectedChange(
                    commit=commit.hash,
                    subject=commit.subject,
                    reason=f"not probed; brought in by the merge {merge.short}",
                )
                for commit in _changing(repository, search.subject, brought)
            ]
        named.append(suspect)
    return tuple(named)


def _changing(repository: Repository, subject: Subject, commits: Sequence[Commit]) -> list[Commit]:
    """Return those of ``commits`` that do not measure the same as their first parent."""
    parents = repository.read_headers([commit.parents[0] for commit in commits if commit.parents])
    known = list({commit.hash: commit for commit in (*parents, *commits)}.values())
    contents = dict(zip((commit.hash for commit in known), subject.contents(known), strict=True))
    return [commit for commit in commits if not commit.parents or contents[commit.hash] != contents[commit.parents[0]]]
