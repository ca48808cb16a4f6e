"""What one measurement gave, and the bytes of it that a search compares (see ``oomscope.probe.demand``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from oomscope.probe.demand import requested_bytes, reserved_bytes
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True)
class Untestable:
    """Why there is nothing to probe."""

    reason: str
    """One line."""
    said: str = ""
    """The end of the output of what failed."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of one measurement."""

    answer: ProbeResult | Untestable
    remarks: tuple[str, ...] = ()
    """What was not as in a full clone, one line each."""

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


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Requested and reserved bytes of a run, or the difference of two runs."""

    requested_bytes: int = 0
    """Most requested bytes alive at once."""
    reserved_bytes: int | None = 0
    """Most that the caching allocator held; None where that is not known, in what is summed from it too."""

    @property
    def overhead_bytes(self) -> int | None:
        """What was reserved beyond the requested bytes: rounding, fragments and cache; None where that is not known."""
        return None if self.reserved_bytes is None else self.reserved_bytes - self.requested_bytes

    @property
    def is_nothing(self) -> bool:
        """Whether it is a difference of no byte, as far as is known."""
        return not self.requested_bytes and not self.reserved_bytes

    def __sub__(self, other: Bytes) -> Bytes:
        return self + Bytes(
            requested_bytes=-other.requested_bytes,
            reserved_bytes=None if other.reserved_bytes is None else -other.reserved_bytes,
        )

    def __add__(self, other: Bytes) -> Bytes:
        are_known = self.reserved_bytes is not None and other.reserved_bytes is not None
        return Bytes(
            requested_bytes=self.requested_bytes + other.requested_bytes,
            reserved_bytes=(self.reserved_bytes or 0) + (other.reserved_bytes or 0) if are_known else None,
        )


def bytes_of(result: ProbeResult | None) -> Bytes | None:
    """Return the bytes of ``result``; None where nothing was measured."""
    if result is None or result.peak is None or result.outcome == "error":
        return None
    return Bytes(requested_bytes=requested_bytes(result), reserved_bytes=reserved_bytes(result))
