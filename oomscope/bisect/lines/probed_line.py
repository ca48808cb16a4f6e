"""A line of commits with all answers along it, and the bytes measured at each position.

Searches are built on it. A position has one answer, or several where answers may be wrong. The ends of a line differ
for what a merge brought in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from oomscope.bisect.results.growth import dominant_growth
from oomscope.bisect.results.result import ProbeRecord, Role, StepRow, SuspectedChange
from oomscope.bisect.run.experiment import Experiment, Untestable
from oomscope.bisect.run.prober import AnswerAndResult, Prober, Question
from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.measured import Bytes, bytes_of
from oomscope.bisect.search.posterior import PosteriorSearch
from oomscope.bisect.search.spread import mean
from oomscope.bisect.search.steps import ByteStep, steps_between
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import CommitLine
from oomscope.bisect.vcs.source_text import Sources
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True, kw_only=True)
class Track:
    """The commits of a line by what is measured of them.

    Neighbours that measure the same thing (the same file, the same tree) share one position, named by the first of
    them: the one with the change.
    """

    positions: tuple[tuple[Commit, ...], ...]
    """Position 0 begins with the good end; the last one ends with the bad end."""
    chosen: tuple[int, ...]
    """Positions from 1 on that begin with a commit on the chosen paths; all of them where none were chosen."""

    @classmethod
    def of(cls, line: CommitLine, subject: Subject) -> Track:
        """Return the track of ``line`` for ``subject``."""
        walked = (line.base, *line.commits)
        contents = subject.contents(walked)
        firsts = [place for place in range(len(walked)) if place == 0 or contents[place] != contents[place - 1]]
        positions = tuple(walked[first:end] for first, end in zip(firsts, [*firsts[1:], len(walked)], strict=True))
        chosen = (place for place in range(1, len(positions)) if line.is_chosen(positions[place][0]))
        return cls(positions=positions, chosen=tuple(chosen))

    @property
    def last(self) -> int:
        """The position of the bad end."""
        return len(self.positions) - 1

    @cached_property
    def asked_first(self) -> tuple[int, ...]:
        """The positions that are asked about before all others, in order; both ends are among them."""
        return tuple(dict.fromkeys((0, *self.chosen, self.last)))

    @property
    def probes_at_most(self) -> int:
        """The probes with an answer that may be needed, both ends included.

        That is while the culprit is one of the chosen and its parent can be tested, which proves it.
        """
        if self.last == 0:
            return 1
        proof = 1 if len(self.chosen) < self.last else 0
        return 2 + Search.over(len(self.asked_first) - 1).probes_left + proof

    @property
    def probes_more(self) -> int:
        """How many more may be needed where it is not."""
        hidden = self.last - len(self.chosen)
        return Search.over(hidden).probes_left if hidden else 0


@dataclass(frozen=True, kw_only=True)
class LineEnds:
    """The ends of a line, as people and records name them."""

    good: str
    bad: str
    good_role: Role
    bad_role: Role
    between_role: Role
    """Of all positions in between."""
    are_needed: bool
    """Whether nothing can be said where one of them cannot be tested."""


ENDS = LineEnds(
    good="the good end",
    bad="the bad end",
    good_role="good end",
    bad_role="bad end",
    between_role="search",
    are_needed=True,
)
BRANCH_ENDS = LineEnds(
    good="its beginning",
    bad="the merge",
    good_role="merged branch",
    bad_role="merged branch",
    between_role="merged branch",
    are_needed=False,
)
"""Of what a merge brought in; an end that cannot be tested is one more untestable position there."""


@dataclass
class Answers:
    """The answers at one position, in the order given."""

    given: list[AnswerAndResult] = field(default_factory=list)

    @property
    def samples(self) -> tuple[Bytes, ...]:
        """What was measured, each time that something was."""
        measured = (bytes_of(result) for _, result in self.given if result is not None)
        return tuple(sizes for sizes in measured if sizes is not None)

    @property
    def latest(self) -> Bytes | None:
        """What was measured last; None where that could not be."""
        _, result = self.given[-1]
        return bytes_of(result) if result is not None else None

    def typical(self, answer: Answer) -> AnswerAndResult:
        """Return the last that says ``answer``; the last of all where none does."""
        return last_of([each for each in self.given if each[0].answer is answer] or self.given)


def last_of(given: Iterable[AnswerAndResult]) -> AnswerAndResult:
    """Return the last of ``given`` that was measured, else the last."""
    answered = list(given)
    return next((each for each in reversed(answered) if each[1] is not None), answered[-1])


OUTSIDE = "touches none of the chosen paths"
Known = dict[str, tuple[ProbeRecord, ProbeResult | None]]
"""What was answered of commits, by hash."""


@dataclass
class ProbedLine:
    """A line and what was answered along it.

    Args:
        track: where.
        subject: what of each commit is measured.
        prober: who answers.
    """

    track: Track
    subject: Subject
    prober: Prober
    records: dict[int, ProbeRecord] = field(default_factory=dict)
    """What speaks for each position that was asked about: its last answer, until :meth:`settle` chooses."""
    results: dict[int, ProbeResult] = field(default_factory=dict)
    answers: dict[int, Answers] = field(default_factory=dict)
    """All that was answered, by position."""
    posterior: PosteriorSearch | None = None
    """What was believed at the end, where answers were weighed."""
    _experiments: dict[int, Experiment | Untestable] = field(default_factory=dict)

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing on the line changes what is measured."""
        return self.track.last == 0

    @property
    def ends(self) -> LineEnds:
        """What is checked of the line before anything else."""
        return ENDS

    @property
    def checked(self) -> tuple[int, ...]:
        """The positions that are checked before anything else, in the order asked."""
        return 0, self.track.last

    @property
    def merge(self) -> Commit | None:
        """The merge that brought the line in, with which it ends; None for the line between the ends of a range."""
        return None

    @property
    def commits_text(self) -> str:
        """What people call the commits of this line."""
        return "commits"

    def commit(self, position: int) -> Commit:
        """Return the commit that ``position`` is named by."""
        return self.track.positions[position][0]

    def last_commit(self, position: int) -> Commit:
        """Return the last commit that measures the same as that of ``position``."""
        return self.track.positions[position][-1]

    def position(self, name: str | None) -> int | None:
        """Return the position that is named by the commit with the hash ``name``; None where there is none."""
        return self._positions.get(name)

    def measured(self, position: int) -> Bytes | None:
        """Return the mean of the bytes measured at ``position``; None where nothing was measured."""
        samples = self.samples(position)
        return mean(samples) if samples else None

    def samples(self, position: int) -> tuple[Bytes, ...]:
        """Return the bytes measured at ``position``, once for each time that it was measured."""
        return self.answers[position].samples if position in self.answers else ()

    def times(self, position: int) -> int:
        """Return how often ``position`` was asked about."""
        return len(self.answers[position].given) if position in self.answers else 0

    def bytes_at(self, position: int) -> Bytes:
        """Return the bytes of the result that speaks for ``position``, which was answered good or bad."""
        return bytes_of(self.results[position]) or Bytes()

    def steps(self) -> tuple[StepRow, ...]:
        """Return the steps between the measured positions."""
        shown = {position: bytes_of(result) for position, result in self.results.items()}
        measured = {position: sizes for position, sizes in shown.items() if sizes is not None}
        return tuple(map(self.row, steps_between(measured)))

    def row(self, step: ByteStep) -> StepRow:
        """Return ``step`` in the words of a report."""
        return StepRow(
            commit=self.commit(step.at).hash,
            label=self.commit(step.at).subject,
            since=self.commit(step.after).hash,
            commits=step.at - step.after,
            delta=step.delta,
            dominant=dominant_growth(
                self.results[step.after], self.results[step.at], self.sources(step.after, step.at)
            ),
        )

    def sources(self, before: int, after: int) -> Sources:
        """Return the code of two positions, by which their lines are compared."""
        return Sources(self.subject.source(self.commit(before)), self.subject.source(self.commit(after)))

    def is_end_of_branch(self, position: int) -> bool:
        """Whether ``position`` is named by the merge that brought the line in."""
        return self.merge is not None and self.commit(position) == self.merge

    def suspects(self, found: SearchFinding) -> tuple[SuspectedChange, ...]:
        """Return the commits that could not be told apart, with the reasons."""
        return tuple(self._suspect(position, found) for position in found.suspects)

    def _suspect(self, position: int, found: SearchFinding) -> SuspectedChange:
        commit, record = self.commit(position), self.records.get(position)
        reason = record.reason if record else "not probed"
        if position not in self.track.chosen:
            reason = f"{OUTSIDE}; {reason}"
        if record is not None and position == found.first_bad:
            reason = f"the first that is known to be bad: {reason}"
        return SuspectedChange(commit=commit.hash, subject=commit.subject, reason=reason)

    def experiment(self, position: int) -> Experiment | Untestable:
        """Return how ``position`` is measured; the same value whenever it is asked for."""
        if position not in self._experiments:
            commit = self.commit(position)
            found = self.subject.experiment(commit)
            if isinstance(found, Experiment):
                found = replace(found, label=f"{commit.short} {commit.subject}")
            self._experiments[position] = found
        return self._experiments[position]

    def again(self, position: int, later: int = 0) -> Experiment | Untestable:
        """Return how ``position`` is measured anew, by a measurement that speaks for no other commit.

        Args:
            position: of the line.
            later: how many measurements of it come before that one, beside those made.
        """
        once = self.experiment(position)
        return once.repeated(self.prober.times(once) + later) if isinstance(once, Experiment) else once

    def probe(self, position: int, role: Role, *, anew: bool = False) -> ProbeRecord:
        """Ask about ``position`` and remember the answer.

        Args:
            position: of the line.
            role: what it is asked for.
            anew: measure, also where the same thing was measured before.

        Raises:
            OutOfTimeError: the deadline passed before there was one.
        """
        commit = self.commit(position)
        question = Question(
            role=role, name=f"{commit.short} {commit.subject}", commit=commit.hash, subject=commit.subject
        )
        record, result = self.prober.ask(question, self.again(position) if anew else self.experiment(position))
        self.know(position, record, result)
        return record

    def know(self, position: int, record: ProbeRecord, result: ProbeResult | None) -> None:
        """Remember what was answered of a commit at ``position``."""
        self.answers.setdefault(position, Answers()).given.append((record, result))
        self._let_speak(position, record, result)

    def settle(self, found: SearchFinding) -> None:
        """Let those answers speak for their positions that agree with what was ``found``, where there are any."""
        for position, answers in self.answers.items():
            expected = Answer.GOOD if position <= found.last_good else Answer.BAD
            self._let_speak(position, *answers.typical(expected))

    def is_bounded(self, found: SearchFinding) -> bool:
        """Whether the commit before those that ``found`` names has answered good."""
        given = self.answers[found.last_good].given if found.last_good in self.answers else ()
        return any(record.answer is Answer.GOOD for record, _ in given)

    @property
    def known_bad(self) -> tuple[int, ...]:
        """The positions that answered bad; where answers were weighed, those that are surely bad."""
        if self.posterior is not None:
            return self.posterior.surely_bad
        return tuple(place for place, record in self.records.items() if record.answer is Answer.BAD)

    def _let_speak(self, position: int, record: ProbeRecord, result: ProbeResult | None) -> None:
        self.records[position] = record
        if result is not None:
            self.results[position] = result

    @property
    def known(self) -> Known:
        """What is known of the commits of this line."""
        return {
            commit.hash: (record, self.results.get(position))
            for position, record in self.records.items()
            for commit in self.track.positions[position]
        }

    def recall(self, known: Known) -> None:
        """Remember what is ``known`` of commits of this line, where nothing is as yet."""
        for position, commits in enumerate(self.track.positions):
            for commit in commits:
                if commit.hash in known and position not in self.records:
                    self.know(position, *known[commit.hash])

    @cached_property
    def _positions(self) -> dict[str | None, int]:
        return {position[0].hash: place for place, position in enumerate(self.track.positions)}
