"""One bisection along a line of commits: checks both ends, then asks the prober what the pure search wants to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from oomscope.bisect.commits import Commit, Line
from oomscope.bisect.ends import judge_ends
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.prober import OutOfTimeError, Prober, Question
from oomscope.bisect.result import ProbeRecord, Role, StepRow, Suspect
from oomscope.bisect.search import Answer, Found, Search
from oomscope.bisect.steps import steps_between
from oomscope.bisect.subjects import Subject
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True, kw_only=True)
class Track:
    """The commits of a line that can make a difference.

    Neighbours that measure the same thing (the same file, the same tree) are one position, named by the first of
    them: the one with the change.
    """

    commits: tuple[Commit, ...]
    """Position 0 is the good end, the last one the bad end (or the first commit that measures the same as it)."""
    lasts: tuple[Commit, ...]
    """For each position the last commit that measures the same."""
    ends_outside: bool = False
    """The last position is there only because the line ends with it: it touches none of the chosen paths."""

    @classmethod
    def of(cls, line: Line, subject: Subject) -> Track:
        """Return the track of ``line`` for ``subject``."""
        walked = (line.base, *line.commits)
        contents = subject.contents(walked)
        firsts = [0] + [place for place in range(1, len(walked)) if contents[place] != contents[place - 1]]
        lasts = [place - 1 for place in firsts[1:]] + [len(walked) - 1]
        return cls(
            commits=tuple(walked[place] for place in firsts),
            lasts=tuple(walked[place] for place in lasts),
            ends_outside=not line.unlimited and firsts[-1] == len(walked) - 1,
        )

    @property
    def last(self) -> int:
        """The position of the bad end."""
        return len(self.commits) - 1


@dataclass(frozen=True, kw_only=True)
class LineAnswer:
    """How a search along a line ended."""

    kind: Literal["found", "no_culprit", "ends_invalid", "out_of_time"]
    reason: str = ""
    found: Found | None = None


@dataclass
class LineSearch:
    """A search along one line.

    Args:
        track: where.
        subject: what of each commit is measured.
        prober: who answers.
        good_role: how records name the first end.
        bad_role: how they name the last.
    """

    track: Track
    subject: Subject
    prober: Prober
    good_role: Role = "good end"
    bad_role: Role = "bad end"
    records: dict[int, ProbeRecord] = field(default_factory=dict)
    results: dict[int, ProbeResult] = field(default_factory=dict)
    search: Search | None = None

    def run(self) -> LineAnswer:
        """Check the ends, search between them and return the answer."""
        try:
            self._probe(0, self.good_role)
            if self.track.last > 0:
                self._probe(self.track.last, self.bad_role)
            answered = judge_ends(self.records[0], self.records[self.track.last])
            if answered is not None:
                return LineAnswer(kind=answered.kind, reason=answered.reason)
            self.search = Search.over(self.track.last)
            while (position := self.search.wanted) is not None:
                self.search = self.search.told(position, self._probe(position, "search").answer)
        except OutOfTimeError:
            return self._stopped()
        return LineAnswer(kind="found", found=self.search.found)

    def commit(self, position: int) -> Commit:
        """Return the commit at ``position``."""
        return self.track.commits[position]

    def bytes_at(self, position: int) -> Bytes:
        """Return the measured bytes at ``position``, which was answered good or bad."""
        measured = bytes_of(self.results[position])
        return measured if measured is not None else Bytes()

    def steps(self) -> tuple[StepRow, ...]:
        """Return the steps between the measured positions."""
        measured = {
            position: sizes for position, result in self.results.items() if (sizes := bytes_of(result)) is not None
        }
        return tuple(
            StepRow(
                commit=self.commit(step.at).hash,
                label=self.commit(step.at).subject,
                since=self.commit(step.after).hash,
                commits=step.at - step.after,
                delta=step.delta,
            )
            for step in steps_between(measured)
        )

    def suspects(self, found: Found) -> tuple[Suspect, ...]:
        """Return the commits that could not be told apart, with the reasons."""
        return tuple(self._suspect(position, found) for position in found.suspects)

    def _suspect(self, position: int, found: Found) -> Suspect:
        commit, record = self.commit(position), self.records.get(position)
        reason = record.reason if record else "not probed"
        if position == found.first_bad:
            reason = f"the first that is known to be bad: {reason}"
        return Suspect(commit=commit.hash, subject=commit.subject, reason=reason)

    def _probe(self, position: int, role: Role) -> ProbeRecord:
        commit = self.commit(position)
        question = Question(
            role=role, name=f"{commit.short} {commit.subject}", commit=commit.hash, subject=commit.subject
        )
        record, result = self.prober.ask(
            question, self.subject.experiment(commit), lambda answer: self._left(position, answer)
        )
        self.records[position] = record
        if result is not None:
            self.results[position] = result
        return record

    def _left(self, position: int, answer: Answer) -> int:
        """Return how many probes with an answer may follow that of ``position``."""
        if self.search is not None:
            return self.search.told(position, answer).probes_left
        inside = Search.over(self.track.last).probes_left if self.track.last else 0
        return inside + (1 if position == 0 and self.track.last else 0)

    def _stopped(self) -> LineAnswer:
        if self.search is None:
            return LineAnswer(kind="out_of_time", reason="the deadline passed before both ends were checked")
        return LineAnswer(kind="out_of_time", reason="the deadline passed", found=self.search.found)
