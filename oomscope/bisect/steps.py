"""The steps of a range: what changed from each measured position to the next, and when that counts as a change.

A step between neighbours is exact; one over several commits says where to look. All of them sum to the difference of
the two ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from oomscope.allocator.constants import LARGE_SEGMENT_DEFAULT
from oomscope.bisect.measured import Bytes


@dataclass(frozen=True, kw_only=True)
class Step:
    """What changed between two measured positions with none measured between them."""

    after: int
    """The measured position before the step."""
    at: int
    """The measured position that closes it."""
    delta: Bytes


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What bytes may differ by without being looked into.

    Requested bytes of a run on a virtual card repeat to the byte. Overhead comes in whole segments, and a change of
    order alone may move one: by default it counts from more than one large segment on (20 MiB, PyTorch's
    ``kLargeBuffer``).
    """

    requested_bytes: int = 0
    overhead_bytes: int = LARGE_SEGMENT_DEFAULT

    @classmethod
    def of(cls, size: int) -> Threshold:
        """Return the threshold of ``size`` for both."""
        return cls(requested_bytes=size, overhead_bytes=size)

    def raised_to(self, other: Threshold) -> Threshold:
        """Return the larger of both, for requested bytes and overhead each."""
        return Threshold(
            requested_bytes=max(self.requested_bytes, other.requested_bytes),
            overhead_bytes=max(self.overhead_bytes, other.overhead_bytes),
        )

    def is_exceeded_by(self, delta: Bytes) -> bool:
        """Whether requested bytes or overhead, as far as it is known, differ by more than this."""
        return abs(delta.requested_bytes) > self.requested_bytes or abs(delta.overhead_bytes or 0) > self.overhead_bytes


def steps_between(measured: Mapping[int, Bytes]) -> tuple[Step, ...]:
    """Return the steps between the measured positions, in order; they sum to the last minus the first."""
    positions = sorted(measured)
    return tuple(Step(after=before, at=at, delta=measured[at] - measured[before]) for before, at in pairwise(positions))
