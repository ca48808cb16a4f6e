"""What was measured at each position of a line, several times at some, folded as it comes: counts, means, spread.

One more measurement costs the copy of some columns and no sum over those before it, so that a search may ask for the
means and the spread after each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.measured import Bytes
from oomscope.bisect.spread import Spread

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Columns with a row for each position."""

    counts: Integers
    """Measurements."""
    live: Integers
    """Sum of their requested bytes."""
    reserved: Integers
    """Sum of their reserved bytes; those of one that does not know them count as its live ones."""
    is_reserved_known: bool = True
    """Whether all of them knew them."""
    live_squares: float = 0.0
    """Squared distances of requested bytes from the means of their positions, summed over all."""
    overhead_squares: float = 0.0
    freedom: int = 0
    """Measurements less positions that were measured."""

    @classmethod
    def none(cls, positions: int) -> Samples:
        """Return no measurement of so many positions."""
        empty = np.zeros(positions, dtype=np.int64)
        return cls(counts=empty, live=empty, reserved=empty)

    def with_one(self, position: int, measured: Bytes) -> Samples:
        """Return these and one more."""
        count, live_before, reserved_before = (
            int(column[position]) for column in (self.counts, self.live, self.reserved)
        )
        share, overhead = count / (count + 1), measured.overhead_bytes or 0
        live_beyond = _distance(measured.requested_bytes, live_before, count)
        overhead_beyond = _distance(overhead, reserved_before - live_before, count)
        return replace(
            self,
            counts=_raised(self.counts, position, 1),
            live=_raised(self.live, position, measured.requested_bytes),
            reserved=_raised(self.reserved, position, measured.requested_bytes + overhead),
            is_reserved_known=self.is_reserved_known and measured.reserved_bytes is not None,
            live_squares=self.live_squares + share * live_beyond**2,
            overhead_squares=self.overhead_squares + share * overhead_beyond**2,
            freedom=self.freedom + (count > 0),
        )

    def means(self, positions: Integers) -> tuple[Integers, Integers]:
        """Return the mean live and reserved bytes at ``positions``, in whole bytes; 0 where nothing was measured."""
        counts = np.maximum(self.counts[positions], 1)
        live, reserved = (np.rint(sums[positions] / counts).astype(np.int64) for sums in (self.live, self.reserved))
        return live, reserved

    @property
    def spread(self) -> Spread:
        """The spread of one measurement, pooled over all positions."""
        live, overhead = (
            float(np.sqrt(squares / self.freedom)) if self.freedom else 0.0
            for squares in (self.live_squares, self.overhead_squares)
        )
        return Spread(requested_bytes=live, overhead_bytes=overhead, freedom=self.freedom)


def _raised(column: Integers, position: int, by: int) -> Integers:
    raised = column.copy()
    raised[position] += by
    return raised


def _distance(value: int, total: int, count: int) -> float:
    return value - total / count if count else 0.0
