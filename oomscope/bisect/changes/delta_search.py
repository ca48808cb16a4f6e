"""Drives the search for a minimal set of changes: asks the prober the questions of the pure search, then measures
each change that was found by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from oomscope.bisect.changes.change_set import ChangeSet, everything, names, title
from oomscope.bisect.results.result import EndsAnswer, ProbeRecord, Role, judge_ends
from oomscope.bisect.run.experiment import Experiment, OutOfTimeError
from oomscope.bisect.run.prober import Ahead, Prober, Question
from oomscope.bisect.run.weighing import Weighing
from oomscope.bisect.search.deltas import Changes, minimal_set, next_question, smallest_valid, thinned
from oomscope.bisect.search.line import Answer, Search, ahead
from oomscope.bisect.search.measured import Untestable, bytes_of
from oomscope.bisect.search.repeats import Noise
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes

NONE: Changes = frozenset()


@dataclass(frozen=True, kw_only=True)
class MinimalSet:
    """Changes that are bad together, and no longer when any is left out."""

    units: tuple[Changes, ...]
    """The units in the order of the row; changes of one unit were made together."""
    alone: tuple[Bytes | None, ...]
    """The bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
    delta: Bytes
    """Difference between no change and all of these."""

    @property
    def changes(self) -> Changes:
        """All changes of the units."""
        return NONE.union(*self.units)

    @property
    def interaction(self) -> Bytes:
        """``delta`` minus the bytes of each unit that was measured alone."""
        return self.delta - sum((delta for delta in self.alone if delta is not None), start=Bytes())


@dataclass
class DeltaSearch:
    """A search among the changes between two states, with what is known of every state that was probed.

    Args:
        change_set: the states.
        prober: answers.
        noise: how to treat answers that may be wrong; None leaves it to the backend.
        role: the role of the search's questions in their records.
        role_alone: the role of those about one change by itself.
        called: what people are shown of some changes; their names unless given.
        learn: given untestable changes, the reason, and all that ran, learns what they lack; returns whether they are
            now invalid.
    """

    change_set: ChangeSet
    prober: Prober
    noise: Noise | None = None
    role: Role = "search"
    role_alone: Role = "key alone"
    called: Callable[[Changes], str] | None = None
    learn: Callable[[Changes, str, Iterable[Changes]], bool] = lambda _changes, _reason, _ran: False
    records: dict[Changes, ProbeRecord] = field(default_factory=dict)
    results: dict[Changes, ProbeResult] = field(default_factory=dict)
    weighing: Weighing = field(init=False)
    _experiments: dict[Changes, Experiment | Untestable] = field(default_factory=dict)
    _valid: dict[Changes, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        decisions = 2 + probes_for(len(self.change_set.keys))
        self.weighing = Weighing(self.prober, self.noise, decisions)

    def ends(self) -> EndsAnswer | None:
        """Check both ends, and return the answer that they give by themselves."""
        good = self.ask(NONE, "good end", self._ends_ahead)
        bad = self.ask(everything(self.change_set), "bad end", self._ends_ahead) if self.change_set.keys else good
        return judge_ends(good, bad)

    def minimal(self, among: Callable[[], Sequence[Changes]]) -> MinimalSet:
        """Return a minimal set of the units that ``among`` returns, with the bytes of each by itself."""
        return self.with_bytes(self.smallest(among))

    def with_bytes(self, found: Sequence[Changes]) -> MinimalSet:
        """Return the units ``found`` with the bytes of each by itself; if some of them turn out to be bad, those."""
        fault = NONE.union(*found)
        alone = self._each_alone(found, fault)
        if (fewer := self._bad_within(fault)) is not None:
            left = [unit & fewer for unit in found if unit & fewer]
            return self.minimal(lambda: left)
        return MinimalSet(units=tuple(found), alone=tuple(alone), delta=self.bytes(fault) - self.bytes(NONE))

    def smallest(self, among: Callable[[], Sequence[Changes]]) -> list[Changes]:
        """Return a minimal set of units, where no change is good and all units together are bad.

        ``among`` is asked anew whenever a failed run has shown that some changes need others.

        Raises:
            OutOfTimeError: the deadline passed before it was found.
        """
        while (found := self._smallest(list(among()))) is None:
            self._valid.clear()
        return found

    def thinned(self, changes: Changes, doubtful: Sequence[int], is_valid: Callable[[Changes], bool]) -> Changes:
        """Return ``changes``, which are bad, without those of ``doubtful`` without which they are bad too.

        Raises:
            OutOfTimeError: the deadline passed before all were tried.
        """

        def is_bad(wanted: Changes) -> bool:
            return is_valid(wanted) and (self.records.get(wanted) or self.ask(wanted, self.role)).answer is Answer.BAD

        return thinned(changes, doubtful, is_bad)

    def _smallest(self, units: list[Changes]) -> list[Changes] | None:
        """Return a minimal set of ``units``; None where an answer has shown that they have to be grouped anew."""
        questions = minimal_set(units, self._is_valid)
        answers: tuple[Answer, ...] = ()
        try:
            changes = next(questions)
            while True:
                record = self.records.get(changes)  # the same set may be wanted for another reason
                if record is None:
                    record = self.ask(changes, self.role, partial(self._ahead, units, answers))
                    if record.answer is Answer.UNTESTABLE and self.learn(changes, record.reason, self._ran()):
                        return None
                answers = (*answers, record.answer)
                changes = questions.send(record.answer)
        except StopIteration as stop:
            found: list[Changes] = stop.value
            return found

    def _ran(self) -> list[Changes]:
        return [changes for changes, record in self.records.items() if record.answer is not Answer.UNTESTABLE]

    def _ends_ahead(self) -> Iterator[Experiment | Untestable]:
        """Yield both ends, and what the search asks unless they answer by themselves."""
        yield self.experiment(NONE)
        if self.change_set.keys:
            yield self.experiment(everything(self.change_set))
            yield from self._ahead(self.change_set.units(), ())

    def _ahead(self, units: Sequence[Changes], answers: tuple[Answer, ...]) -> Iterator[Experiment | Untestable]:
        """Yield what the search that was given ``answers`` is likely to ask, likeliest first."""
        wanted = ahead(
            [answers],
            lambda given: next_question(list(units), self._is_valid, given),
            lambda given, _changes, answer: (*given, answer),
            lambda changes: self.prober.known_answer(self.experiment(changes)),
        )
        return map(self.experiment, wanted)

    def experiment(self, changes: Changes) -> Experiment | Untestable:
        """Return how the state with ``changes`` made is measured; the same value whenever it is asked for."""
        if changes not in self._experiments:
            found = self.change_set.experiment(changes)
            if isinstance(found, Experiment):
                found = replace(found, label=self._title(changes))
            self._experiments[changes] = found
        return self._experiments[changes]

    def _title(self, changes: Changes) -> str:
        called = self.called
        return f"{self.change_set.good} with {called(changes)}" if called else title(self.change_set, changes)

    def _is_valid(self, changes: Changes) -> bool:
        if changes not in self._valid:
            self._valid[changes] = self.change_set.is_valid(changes)
        return self._valid[changes]

    def smallest_bad(self) -> Changes | None:
        """Return the smallest set of changes that was seen to be bad; None before both ends were."""
        bad = [changes for changes, record in self.records.items() if record.answer is Answer.BAD]
        return min(bad, key=len) if bad and len(self.records) > 1 else None

    def _bad_within(self, fault: Changes) -> Changes | None:
        """Return the smallest set of changes that was seen to be bad without some of ``fault``; None if none was."""
        bad = [changes for changes, record in self.records.items() if record.answer is Answer.BAD and changes < fault]
        return min(bad, key=len, default=None)

    def bytes(self, changes: Changes) -> Bytes:
        """Return the bytes of a state that was answered good or bad, and hence measured."""
        return bytes_of(self.results[changes]) or Bytes()

    def ask(self, changes: Changes, role: Role, ahead: Ahead = tuple) -> ProbeRecord:
        """Return the answer for the state with ``changes`` made, and remember it; ``ahead`` is likely to follow."""
        name = self.change_set.bad if role == "bad end" else self._title(changes)
        called = self.called(changes) if self.called else ""
        question = Question(role=role, name=name, subject=called, keys=names(self.change_set, changes))
        record, result = self.weighing.ask(question, self.experiment(changes), ahead)
        self.records[changes] = record
        if result is not None:
            self.results[changes] = result
        return record

    def _each_alone(self, found: Sequence[Changes], fault: Changes) -> list[Bytes | None]:
        """Return the bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
        alone: list[Bytes | None] = []
        for unit in found:
            made = smallest_valid(unit, fault, self.change_set.is_valid)
            before = made - unit if self.change_set.is_valid(made - unit) else NONE
            try:
                for changes in (before, made):
                    if changes not in self.records:
                        self.ask(changes, self.role_alone)
            except OutOfTimeError:
                self.prober.note("the deadline passed before every change was measured by itself")
            low, high = (bytes_of(self.results.get(changes)) for changes in (before, made))
            alone.append(high - low if low is not None and high is not None else None)
        return alone


def probes_for(changes: int) -> int:
    """Return how many answers find one of so many changes and show that it is enough by itself."""
    return Search.over(changes).probes_left + (changes > 1) if changes else 0
