"""What one measurement gave, and the bytes of it that a search compares (see ``oomscope.probe.demand``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from oomscope.probe.demand import requested_bytes, reserved_bytes
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes


@dataclass(frozen=True)
class Untestable:
    """Why there is nothing to probe."""

    reason: str
    """Why nothing was measured, in one line."""
    output: str = ""
    """The end of the output of what failed."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The outcome of one measurement."""

    answer: ProbeResult | Untestable
    remarks: tuple[str, ...] = ()
    """Differences from a full clone, one line each."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        if isinstance(self.answer, Untestable):
            return {"untestable": self.answer.reason, "output": self.answer.output}
        return {"result": self.answer.to_json(), "remarks": list(self.remarks)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read back what :meth:`to_json` wrote."""
        if "untestable" in document:
            return cls(answer=Untestable(document["untestable"], document["output"]))
        return cls(answer=ProbeResult.from_json(document["result"]), remarks=tuple(document["remarks"]))


def leak_bytes_of(result: ProbeResult | None) -> int:
    """Return by how much requested memory grew with each iteration; 0 where it did not, or nothing was measured."""
    leak = result.verdict.leak if result is not None and result.verdict else None
    return leak.bytes_per_iteration if leak else 0


def bytes_of(result: ProbeResult | None) -> Bytes | None:
    """Return the bytes of ``result``; None where nothing was measured."""
    if result is None or result.peak is None or result.outcome == "error":
        return None
    return Bytes(requested_bytes=requested_bytes(result), reserved_bytes=reserved_bytes(result))
