"""The steps of a range that a search has seen on its way: from each measured position to the next.

Nothing more is probed for it. A step between neighbours is exact; one over several commits says where to look. The
rows sum to the difference of the two ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from oomscope.bisect.measured import Bytes


@dataclass(frozen=True, kw_only=True)
class Step:
    """What changed between two measured positions with none measured between them."""

    after: int
    """The measured position before the step."""
    at: int
    """The measured position that closes it."""
    delta: Bytes


def steps_between(measured: Mapping[int, Bytes]) -> tuple[Step, ...]:
    """Return the steps between the measured positions, in order; they sum to the last minus the first."""
    positions = sorted(measured)
    return tuple(Step(after=before, at=at, delta=measured[at] - measured[before]) for before, at in pairwise(positions))
