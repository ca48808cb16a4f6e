"""What a search remembers from an earlier life of its own: the seam between the prober and the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from oomscope.bisect.experiment import Untestable
from oomscope.bisect.identity import digest_of
from oomscope.probe.result import ProbeResult

Key = Mapping[str, Any]
"""What a result is kept under (:func:`oomscope.bisect.identity.key_of`)."""

_SURROUNDINGS = ("key_version", "versions", "packages", "gpus")
"""Parts of a key that are the same throughout a search, and need not be when its evidence is read again."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What one measurement answered."""

    answer: ProbeResult | Untestable
    remarks: tuple[str, ...] = ()
    """What the report has to say of it, such as what was not as in a full clone; one line each."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        if isinstance(self.answer, Untestable):
            return {"untestable": self.answer.reason, "said": self.answer.said}
        return {"result": self.answer.to_json(), "remarks": list(self.remarks)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_json` wrote."""
        if "untestable" in document:
            return cls(answer=Untestable(document["untestable"], document["said"]))
        return cls(answer=ProbeResult.from_json(document["result"]), remarks=tuple(document["remarks"]))


class Memory(Protocol):
    """Answers of earlier lives of a search; told of those of this one."""

    def recall(self, key: Key) -> Kept | None:
        """Return what was answered before; None where nothing was."""
        ...

    def is_taken_back(self, key: Key) -> bool:
        """Whether an answer was given and taken back, so that only a new measurement counts."""
        ...

    def wanted(self, key: Key) -> None:
        """Take notice that a measurement is needed.

        Raises:
            OutOfTimeError: none is to be made.
        """
        ...

    def learn(self, key: Key, kept: Kept) -> None:
        """Keep what was answered to the question that is open."""
        ...


class NoMemory:
    """The memory of a search that keeps no journal."""

    def recall(self, key: Key) -> None:
        """Return None."""
        return

    def is_taken_back(self, key: Key) -> bool:
        """Return False."""
        return False

    def wanted(self, key: Key) -> None:
        """Do nothing."""

    def learn(self, key: Key, kept: Kept) -> None:
        """Do nothing."""


def asked_of(key: Key) -> str:
    """Return the name, inside its search, of the measurement whose result is kept under ``key``.

    What surrounds a whole search (versions, cards, the user's variables, the harness) has no part in it: a search goes
    on only while that is the same, and recorded evidence is read on any machine.
    """
    target = {name: value for name, value in key["target"].items() if name != "harness"}
    if "variables" in target:
        target.pop("environment", None)
    return digest_of({**{name: value for name, value in key.items() if name not in _SURROUNDINGS}, "target": target})
