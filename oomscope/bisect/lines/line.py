"""A line of commits with all answers along it, and the bytes measured at each position. Searches are built on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from oomscope.bisect.results.growth import dominant_growth
from oomscope.bisect.results.result import ProbeRecord, Role, StepRow, SuspectedChange
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.prober import Ahead, AnswerAndResult, Prober, Question
from oomscope.bisect.search.line import Answer, Search, SearchFinding
from oomscope.bisect.search.measured import Untestable, bytes_of, leak_bytes_of
from oomscope.bisect.search.repeats import mean
from oomscope.bisect.search.steps import ByteStep, steps_between
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.repository import Commit, CommitLine
from oomscope.bisect.vcs.source_text import Sources
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes

OUTSIDE = "touches none of the chosen paths"
Known = dict[str, AnswerAndResult]
"""Answers by the hash of the commit."""


@dataclass
class Line:
    """A line and the answers along it.

    Neighbours that measure the same thing (the same file, the same tree) share one position, named by the first of
    them: the one with the change. A position has one answer, or several where answers may be wrong.

    Args:
        positions: position 0 begins with the good end; the last one ends with the bad end.
        chosen: positions from 1 on that begin with a commit on the chosen paths; all of them where none were chosen.
        subject: what of each commit is measured.
        prober: measures it.
        merge: the merge that brought the line in, with which it ends; None for the line between the ends of a range.
    """

    positions: tuple[tuple[Commit, ...], ...]
    chosen: tuple[int, ...]
    subject: Subject
    prober: Prober
    merge: Commit | None = None
    records: dict[int, ProbeRecord] = field(default_factory=dict)
    """The answer reported for each position: its last one, until :meth:`adopt_agreeing` chooses."""
    results: dict[int, ProbeResult] = field(default_factory=dict)
    given: dict[int, list[AnswerAndResult]] = field(default_factory=dict)
    """All answers, by position."""
    _experiments: dict[int, Experiment | Untestable] = field(default_factory=dict)

    @classmethod
    def of(cls, line: CommitLine, subject: Subject, prober: Prober, merge: Commit | None = None) -> Line:
        """Return the line of the commits ``line``, measured as ``subject`` says."""
        walked = (line.base, *line.commits)
        contents = subject.contents(walked)
        firsts = [place for place in range(len(walked)) if place == 0 or contents[place] != contents[place - 1]]
        positions = tuple(walked[first:end] for first, end in zip(firsts, [*firsts[1:], len(walked)], strict=True))
        chosen = tuple(
            place
            for place in range(1, len(positions))
            if line.touching is None or positions[place][0].hash in line.touching
        )
        return cls(positions, chosen, subject, prober, merge)

    @property
    def last(self) -> int:
        """The position of the bad end."""
        return len(self.positions) - 1

    @cached_property
    def asked_first(self) -> tuple[int, ...]:
        """The positions that are searched before all others, in order: both ends and the chosen ones."""
        return tuple(dict.fromkeys((0, *self.chosen, self.last)))

    @property
    def probes_at_most(self) -> int:
        """The answers needed: both ends, the bisection, and the parent that confirms a culprit on chosen paths."""
        if self.last == 0:
            return 1
        return 2 + Search.over(len(self.asked_first) - 1).probes_left + (len(self.chosen) < self.last)

    @property
    def probes_more(self) -> int:
        """How many more are needed where the culprit is not on the chosen paths, or its parent is untestable."""
        hidden = self.last - len(self.chosen)
        return Search.over(hidden).probes_left if hidden else 0

    @property
    def tip(self) -> int:
        """The position of the last commit of a branch before its merge."""
        return self.last if len(self.positions[self.last]) > 1 else self.last - 1

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing on the line, for a branch nothing before its merge, changes what is measured."""
        return self.last == 0 or (self.merge is not None and self.tip == 0)

    @property
    def checked(self) -> tuple[int, ...]:
        """The positions that are checked before anything else: a branch is ruled out by a good tip."""
        return (0, self.last) if self.merge is None else (self.tip, 0)

    @property
    def end_names(self) -> tuple[str, str]:
        """Names of the ends, for people."""
        return ("the good end", "the bad end") if self.merge is None else ("its beginning", "the merge")

    @property
    def document(self) -> WalkedLine:
        """The line as a result lists it."""
        return WalkedLine.of(self.positions, self.chosen, None if self.merge is None else self.merge.hash)

    def commit(self, position: int) -> Commit:
        """Return the commit that ``position`` is named by."""
        return self.positions[position][0]

    def last_commit(self, position: int) -> Commit:
        """Return the last commit that measures the same as that of ``position``."""
        return self.positions[position][-1]

    def position(self, name: str | None) -> int | None:
        """Return the position that is named by the commit with the hash ``name``; None where there is none."""
        return next((place for place, commits in enumerate(self.positions) if commits[0].hash == name), None)

    def is_end_of_branch(self, position: int) -> bool:
        """Whether ``position`` is named by the merge that brought the line in."""
        return self.merge is not None and self.commit(position) == self.merge

    def samples(self, position: int) -> tuple[Bytes, ...]:
        """Return the bytes measured at ``position``, once for each time that it was measured."""
        measured = (bytes_of(result) for _, result in self.given.get(position, ()))
        return tuple(sizes for sizes in measured if sizes is not None)

    def measured(self, position: int) -> Bytes | None:
        """Return the mean of the bytes measured at ``position``; None where nothing was measured."""
        samples = self.samples(position)
        return mean(samples) if samples else None

    def bytes_at(self, position: int) -> Bytes:
        """Return the bytes of the result that stands for ``position``, which was answered good or bad."""
        return bytes_of(self.results[position]) or Bytes()

    def steps(self) -> tuple[StepRow, ...]:
        """Return the steps between the measured positions."""
        shown = {position: bytes_of(result) for position, result in self.results.items()}
        return tuple(map(self.row, steps_between({place: sizes for place, sizes in shown.items() if sizes})))

    def row(self, step: ByteStep) -> StepRow:
        """Return ``step`` as a row of a report."""
        before, after = self.results[step.after], self.results[step.at]
        return StepRow(
            commit=self.commit(step.at).hash,
            label=self.commit(step.at).subject,
            since=self.commit(step.after).hash,
            commits=step.at - step.after,
            delta=step.delta,
            dominant=dominant_growth(before, after, self.sources(step.after, step.at)),
            leak_bytes=0 if leak_bytes_of(before) else leak_bytes_of(after),
        )

    def sources(self, before: int, after: int) -> Sources:
        """Return the code of two positions, by which their lines are compared."""
        return Sources(self.subject.source(self.commit(before)), self.subject.source(self.commit(after)))

    def suspects(self, found: SearchFinding) -> tuple[SuspectedChange, ...]:
        """Return the commits among which the culprit is not known, with the reasons."""
        return tuple(self._suspect(position, found) for position in found.suspects)

    def _suspect(self, position: int, found: SearchFinding) -> SuspectedChange:
        commit, record = self.commit(position), self.records.get(position)
        reason = record.reason if record else "not probed"
        if position not in self.chosen:
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
                found = replace(found, label=commit.title)
            self._experiments[position] = found
        return self._experiments[position]

    def again(self, position: int, later: int = 0) -> Experiment | Untestable:
        """Return how ``position`` is measured anew, ``later`` measurements after the next one."""
        once = self.experiment(position)
        return once.repeated(self.prober.times(once) + later) if isinstance(once, Experiment) else once

    def probe(self, position: int, role: Role, ahead: Ahead = tuple, *, anew: bool = False) -> ProbeRecord:
        """Ask about ``position`` and remember the answer.

        Args:
            position: of the line.
            role: what it is asked for; the ends of a branch that a merge brought in have a role of their own.
            ahead: what is likely to be asked next.
            anew: measure, also where the same thing was measured before.

        Raises:
            OutOfTimeError: the deadline passed before there was an answer.
        """
        commit = self.commit(position)
        question = Question(
            role="merged branch" if self.merge is not None and role in {"good end", "bad end"} else role,
            name=commit.title,
            commit=commit.hash,
            subject=commit.subject,
        )
        experiment = self.again(position) if anew else self.experiment(position)
        record, result = self.prober.ask(question, experiment, ahead)
        self.know(position, record, result)
        return record

    def probe_again(self, position: int, ahead: Ahead) -> ProbeRecord | None:
        """Probe ``position``, which was answered, once more; None where that fails: the first answer is kept.

        Raises:
            OutOfTimeError: as for :meth:`probe`.
        """
        known = self.records[position], self.results[position]
        record = self.probe(position, "search", ahead, anew=True)
        if record.answer is not Answer.UNTESTABLE:
            return record
        self.given[position].pop()
        self._adopt(position, *known)
        return None

    def know(self, position: int, record: ProbeRecord, result: ProbeResult | None) -> None:
        """Remember an answer of a commit at ``position``."""
        self.given.setdefault(position, []).append((record, result))
        self._adopt(position, record, result)

    def adopt_agreeing(self, found: SearchFinding) -> None:
        """Report for each position an answer that agrees with ``found``, where there is one."""
        for position, given in self.given.items():
            expected = Answer.GOOD if position <= found.last_good else Answer.BAD
            agreeing = [each for each in given if each[0].answer is expected] or given
            measured = [each for each in agreeing if each[1] is not None]
            self._adopt(position, *(measured or agreeing)[-1])

    def is_bounded(self, found: SearchFinding) -> bool:
        """Whether the commit before those that ``found`` names has answered good."""
        return any(record.answer is Answer.GOOD for record, _ in self.given.get(found.last_good, ()))

    @property
    def known_bad(self) -> tuple[int, ...]:
        """The positions most of whose answers are bad."""
        signs = {Answer.GOOD: -1, Answer.BAD: 1, Answer.UNTESTABLE: 0}
        return tuple(place for place, given in self.given.items() if sum(signs[each.answer] for each, _ in given) > 0)

    @property
    def known(self) -> Known:
        """The answers, by the hashes of all commits of their positions."""
        return {
            commit.hash: (record, self.results.get(position))
            for position, record in self.records.items()
            for commit in self.positions[position]
        }

    def recall(self, known: Known) -> None:
        """Remember what is ``known`` of commits of this line, where nothing is as yet."""
        for position, commits in enumerate(self.positions):
            for commit in commits:
                if commit.hash in known and position not in self.records:
                    self.know(position, *known[commit.hash])

    def _adopt(self, position: int, record: ProbeRecord, result: ProbeResult | None) -> None:
        self.records[position] = record
        if result is not None:
            self.results[position] = result
