"""The bytes of one probe that a search compares, and their differences (see ``oomscope.probe.demand``)."""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.probe.demand import (
    demand_bytes,
    is_lower_bound,
    recorded_peak,
    recorded_requested_bytes,
    requested_bytes,
    reserved_bytes,
    wanted_at_failure,
)
from oomscope.probe.result import ProbeResult

__all__ = [
    "Bytes",
    "bytes_of",
    "demand_bytes",
    "is_lower_bound",
    "recorded_peak",
    "recorded_requested_bytes",
    "requested_bytes",
    "reserved_bytes",
    "wanted_at_failure",
]


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Live and reserved bytes of a run, or the difference of two runs."""

    requested_bytes: int = 0
    """Largest amount of requested bytes alive at once."""
    reserved_bytes: int | None = 0
    """Largest amount that the caching allocator held; None where that is not known, in what is summed from it too."""

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


def bytes_of(result: ProbeResult) -> Bytes | None:
    """Return the bytes of ``result``; None where nothing was measured."""
    if result.peak is None or result.outcome == "error":
        return None
    return Bytes(requested_bytes=requested_bytes(result), reserved_bytes=reserved_bytes(result))
