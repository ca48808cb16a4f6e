"""One bisection along a line of commits: checks both ends, then asks the prober what the pure search wants to know.

With chosen paths only the commits that touch them are asked about at first. What that finds is proven by the commit's
parent; where the parent is bad as well, the search goes on among the commits in between, which touch none of the paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from oomscope.bisect.answers import Answers
from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.ends import judge_ends
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.foresight import ahead
from oomscope.bisect.growth import dominant_growth
from oomscope.bisect.headers import Commit
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.posterior import PosteriorSearch
from oomscope.bisect.prober import Prober, Question
from oomscope.bisect.result import ProbeRecord, Role, StepRow, Suspect
from oomscope.bisect.search import Answer, Found, Search
from oomscope.bisect.spread import mean
from oomscope.bisect.steps import Step, steps_between
from oomscope.bisect.subjects import Subject
from oomscope.bisect.track import Track
from oomscope.probe.result import ProbeResult

OUTSIDE = "touches none of the chosen paths"
Known = dict[str, tuple[ProbeRecord, ProbeResult | None]]
"""What was answered of commits, by hash."""


@dataclass(frozen=True, kw_only=True)
class LineAnswer:
    """How a search along a line ended."""

    kind: Literal["found", "no_culprit", "ends_invalid", "out_of_time"]
    reason: str = ""
    found: Found | None = None
    """The positions between which the line turns from good to bad, once both ends are known."""


@dataclass
class LineSearch:
    """A search along one line.

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
    """What a search that weighed its answers believed at its end."""
    _experiments: dict[int, Experiment | Untestable] = field(default_factory=dict)
    _places: Sequence[int] = ()
    """The positions that the bisection under way is over."""
    _search: Search | None = None
    """That bisection, over places in ``_places``."""

    def run(self) -> LineAnswer:
        """Check the ends, search between them and return the answer."""
        try:
            if 0 not in self.records:
                self.foresee(0, self.track.last)
                self.probe(0, "good end")
            if self.track.last not in self.records:
                self.foresee(0, self.track.last)
                self.probe(self.track.last, "bad end")
            answered = judge_ends(self.records[0], self.records[self.track.last])
            if answered is not None:
                return LineAnswer(kind=answered.kind, reason=answered.reason)
            return LineAnswer(kind="found", found=self._between_ends())
        except OutOfTimeError:
            return self._stopped()

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

    def row(self, step: Step) -> StepRow:
        """Return ``step`` in the words of a report."""
        return StepRow(
            commit=self.commit(step.at).hash,
            label=self.commit(step.at).subject,
            since=self.commit(step.after).hash,
            commits=step.at - step.after,
            delta=step.delta,
            dominant=dominant_growth(self.results[step.after], self.results[step.at]),
        )

    def is_end_of_branch(self, position: int) -> bool:
        """Whether ``position`` is named by the merge whose branch this line is."""
        return False

    def suspects(self, found: Found) -> tuple[Suspect, ...]:
        """Return the commits that could not be told apart, with the reasons."""
        return tuple(self._suspect(position, found) for position in found.suspects)

    def _suspect(self, position: int, found: Found) -> Suspect:
        commit, record = self.commit(position), self.records.get(position)
        reason = record.reason if record else "not probed"
        if position not in self.track.chosen:
            reason = f"{OUTSIDE}; {reason}"
        if record is not None and position == found.first_bad:
            reason = f"the first that is known to be bad: {reason}"
        return Suspect(commit=commit.hash, subject=commit.subject, reason=reason)

    def _between_ends(self) -> Found:
        """Search between the ends, the first of which is taken for good and the last for bad."""
        found = self._bisect(self.track.asked_first)
        if set(found.suspects) <= set(self.track.asked_first):
            return found
        return self._among_all(found)

    def _bisect(self, places: Sequence[int], first: int | None = None) -> Found:
        """Search among ``places``, of which the ends are known, and return what was found, in positions.

        Args:
            places: positions in order.
            first: the one to ask about before the search chooses.
        """
        self._places = places
        self._search = Search.over(len(places) - 1)
        for place in set(places) & self.records.keys():
            self._search = self._search.told(places.index(place), self.records[place].answer)
        if first is not None:
            self._ask(places.index(first))
        while (wanted := self._search.wanted) is not None:
            self._ask(wanted)
        return self._found(self._search)

    def _ask(self, wanted: int) -> None:
        if self._search is not None:
            places, search = self._places, self._search
            self.prober.foresee(lambda: map(self.experiment, self._ahead(places, search)))
            self._search = self._search.told(wanted, self.probe(self._places[wanted], "search").answer)

    def foresee(self, *ends: int) -> None:
        """Foresee ``ends``, and the bisection that follows unless they answer by themselves."""
        places = self.track.asked_first

        def positions() -> Iterator[int]:
            yield from ends
            if self.track.last > 0:
                yield from self._ahead(places, Search.over(len(places) - 1))

        self.prober.foresee(lambda: map(self.experiment, positions()))

    def _ahead(self, places: Sequence[int], search: Search) -> Iterator[int]:
        """Yield the positions that ``search`` over ``places`` is likely to ask about, likeliest first."""
        wanted = ahead(
            [search],
            lambda state: state.wanted,
            Search.told,
            lambda place: self.prober.foreseen(self.experiment(places[place])),
        )
        return (places[place] for place in wanted)

    def experiment(self, position: int) -> Experiment | Untestable:
        """Return how ``position`` is measured; the same value whenever it is asked for."""
        if position not in self._experiments:
            commit = self.commit(position)
            found = self.subject.experiment(commit)
            if isinstance(found, Experiment):
                found = replace(found, label=f"{commit.short} {commit.subject}")
            self._experiments[position] = found
        return self._experiments[position]

    def repeated(self, position: int, repeat: int) -> Experiment | Untestable:
        """Return how ``position`` is measured for the time with the number ``repeat``, from 0."""
        once = self.experiment(position)
        return once.repeated(repeat) if repeat and isinstance(once, Experiment) else once

    def _among_all(self, found: Found) -> Found:
        """Search among all that lies between the last good and the first bad position that ``found`` left.

        The parent of the first bad one comes first, if that one is the only choice: where it is good, that is all.
        """
        span = range(found.last_good, found.first_bad + 1)
        choice = [position for position in found.suspects if position in self.track.chosen]
        found = self._bisect(span, first=span[-2] if choice == [found.first_bad] else None)
        if not set(found.suspects) & set(self.track.chosen):
            among = f"{self.commits_text} between {self.commit(span[0]).short} and {self.commit(span[-1]).short}"
            self.prober.note(f"the change {OUTSIDE}: the search went on among all {among}")
        return found

    def _found(self, search: Search) -> Found:
        """Return what ``search`` has found, in positions, with those between its places that it never asks about."""
        last_good, first_bad = self._places[search.found.last_good], self._places[search.found.first_bad]
        suspects = tuple(range(last_good + 1, first_bad + 1))
        return Found(kind="culprit" if len(suspects) == 1 else "suspects", last_good=last_good, suspects=suspects)

    def probe(self, position: int, role: Role, repeat: int = 0) -> ProbeRecord:
        """Ask about ``position`` and remember the answer.

        Args:
            position: of the line.
            role: what it is asked for.
            repeat: from 1 on, measure it once more.

        Raises:
            OutOfTimeError: the deadline passed before there was one.
        """
        commit = self.commit(position)
        question = Question(
            role=role, name=f"{commit.short} {commit.subject}", commit=commit.hash, subject=commit.subject
        )
        record, result = self.prober.ask(question, self.repeated(position, repeat))
        self.know(position, record, result)
        return record

    def know(self, position: int, record: ProbeRecord, result: ProbeResult | None) -> None:
        """Remember what was answered of a commit at ``position``."""
        self.answers.setdefault(position, Answers()).given.append((record, result))
        self._let_speak(position, record, result)

    def settle(self, found: Found) -> None:
        """Let those answers speak for their positions that agree with what was ``found``, where there are any."""
        for position, answers in self.answers.items():
            expected = Answer.GOOD if position <= found.last_good else Answer.BAD
            self._let_speak(position, *answers.typical(expected))

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

    def _stopped(self) -> LineAnswer:
        if self._search is None:
            return LineAnswer(kind="out_of_time", reason="the deadline passed before both ends were checked")
        return LineAnswer(kind="out_of_time", reason="the deadline passed", found=self._found(self._search))
