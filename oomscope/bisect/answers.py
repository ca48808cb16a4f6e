"""All that was answered at one position of a line, which may have been asked about more than once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.result import ProbeRecord
from oomscope.bisect.search import Answer
from oomscope.probe.result import ProbeResult

Answered = tuple[ProbeRecord, ProbeResult | None]
"""An answer, with the result that it rests on where something was measured."""


@dataclass
class Answers:
    """The answers at one position, in the order given."""

    given: list[Answered] = field(default_factory=list)

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

    def typical(self, answer: Answer) -> Answered:
        """Return the last that says ``answer``; the last of all where none does."""
        return last_of([each for each in self.given if each[0].answer is answer] or self.given)


def last_of(given: Iterable[Answered]) -> Answered:
    """Return the last of ``given`` that was measured, else the last."""
    answered = list(given)
    return next((each for each in reversed(answered) if each[1] is not None), answered[-1])
