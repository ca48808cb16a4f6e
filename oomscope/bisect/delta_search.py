"""Drives the search for a minimal set of changes: asks the prober what the pure search wants to know, then measures
each change that was found by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.deltas import Changes, minimal_set, smallest_valid
from oomscope.bisect.ends import EndsAnswer, judge_ends
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.mixture import Mixture, everything, names, title
from oomscope.bisect.prober import Prober, Question
from oomscope.bisect.result import ProbeRecord, Role
from oomscope.bisect.search import Answer
from oomscope.probe.result import ProbeResult

NONE: Changes = frozenset()


@dataclass(frozen=True, kw_only=True)
class MinimalSet:
    """Changes that together are bad, of which none can be left out."""

    units: tuple[Changes, ...]
    """In the order of the row; those of one unit were made together."""
    alone: tuple[Bytes | None, ...]
    """The bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
    delta: Bytes
    """From no change to all of these."""

    @property
    def changes(self) -> Changes:
        """All of them."""
        return NONE.union(*self.units)

    @property
    def interaction(self) -> Bytes:
        """What is left of ``delta`` when the bytes that each unit is known to bring by itself are taken off."""
        return self.delta - sum((delta for delta in self.alone if delta is not None), start=Bytes())


@dataclass
class DeltaSearch:
    """A search among the changes between two states, with what is known of every state that was probed.

    Args:
        mixture: the states.
        prober: who answers.
        role: as what the search's questions are recorded.
        role_alone: and those about one change by itself.
    """

    mixture: Mixture
    prober: Prober
    role: Role = "search"
    role_alone: Role = "key alone"
    records: dict[Changes, ProbeRecord] = field(default_factory=dict)
    results: dict[Changes, ProbeResult] = field(default_factory=dict)

    def ends(self) -> EndsAnswer | None:
        """Check both ends, and return the answer that they give by themselves.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        good = self.ask(NONE, "good end")
        bad = self.ask(everything(self.mixture), "bad end") if self.mixture.keys else good
        return judge_ends(good, bad)

    def minimal(self, units: Sequence[Changes]) -> MinimalSet:
        """Return a minimal set of ``units``, where no change is good and all of them are bad.

        Raises:
            OutOfTimeError: the deadline passed before it was found.
        """
        questions = minimal_set(list(units), self.mixture.is_valid)
        try:
            changes = next(questions)
            while True:
                changes = questions.send(self.ask(changes, self.role).answer)
        except StopIteration as stop:
            found: list[Changes] = stop.value
        fault = NONE.union(*found)
        alone = self._each_alone(found, fault)
        return MinimalSet(units=tuple(found), alone=tuple(alone), delta=self.bytes(fault) - self.bytes(NONE))

    def smallest_bad(self) -> Changes | None:
        """Return the smallest set of changes that was seen to be bad; None before both ends were."""
        bad = [changes for changes, record in self.records.items() if record.answer is Answer.BAD]
        return min(bad, key=len) if bad and len(self.records) > 1 else None

    def bytes(self, changes: Changes) -> Bytes:
        """Return the bytes of a state that was answered good or bad, and hence measured."""
        return bytes_of(self.results[changes]) or Bytes()

    def ask(self, changes: Changes, role: Role) -> ProbeRecord:
        """Return the answer for the state with ``changes`` made, and remember it.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        name = self.mixture.bad if role == "bad end" else title(self.mixture, changes)
        question = Question(role=role, name=name, keys=names(self.mixture, changes))
        record, result = self.prober.ask(question, self.mixture.experiment(changes))
        self.records[changes] = record
        if result is not None:
            self.results[changes] = result
        return record

    def _each_alone(self, found: Sequence[Changes], fault: Changes) -> list[Bytes | None]:
        """Return the bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
        alone: list[Bytes | None] = []
        for unit in found:
            made = smallest_valid(unit, fault, self.mixture.is_valid)
            before = made - unit if self.mixture.is_valid(made - unit) else NONE
            try:
                for changes in (before, made):
                    if changes not in self.records:
                        self.ask(changes, self.role_alone)
            except OutOfTimeError:
                self.prober.note("the deadline passed before every change was measured by itself")
            measured = [bytes_of(self.results[changes]) for changes in (before, made) if changes in self.results]
            known = [sizes for sizes in measured if sizes is not None]
            alone.append(known[1] - known[0] if len(known) == 2 else None)
        return alone
