"""What a search remembers from an earlier life of its own: the seam between the prober and the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from oomscope.bisect.experiment import Untestable
from oomscope.probe.result import ProbeResult

Key = Mapping[str, Any]
"""What a result is kept under (:func:`oomscope.bisect.identity.key_of`)."""


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

    def learn(self, key: Key, kept: Kept) -> None:
        """Keep what was answered to the question that is open."""
        ...


class NoMemory:
    """The memory of a search that keeps no journal."""

    def recall(self, key: Key) -> None:
        """Return None."""
        return

    def learn(self, key: Key, kept: Kept) -> None:
        """Do nothing."""
