"""The ranges between the measured positions of a line, as columns: what the means at both their ends differ by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from oomscope.bisect.measured import Bytes
from oomscope.bisect.samples import Integers, Samples
from oomscope.bisect.steps import Step, Threshold

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Columns with a row for each range, in order; the first begins at 0 and the last ends at the last position."""

    before: Integers
    after: Integers
    """The positions at either end."""
    live: Integers
    """Change of requested bytes from one end to the other."""
    overhead: Integers
    """0 throughout where reserved bytes are not known."""
    is_overhead_known: bool
    are_measured: Flags
    """Whether both ends were."""

    @classmethod
    def of(cls, samples: Samples, last: int) -> Gaps:
        """Return the ranges between the measured ones of the positions 0 to ``last``, both of which count as such."""
        is_end = samples.counts > 0
        is_end[[0, last]] = True
        ends = np.flatnonzero(is_end)
        live, reserved = samples.means(ends)
        is_measured = samples.counts[ends] > 0
        return cls(
            before=ends[:-1],
            after=ends[1:],
            live=np.diff(live),
            overhead=np.diff(reserved - live),
            is_overhead_known=samples.is_reserved_known,
            are_measured=is_measured[:-1] & is_measured[1:],
        )

    @cached_property
    def weights(self) -> Integers:
        """The larger change of either kind, without its sign."""
        return np.maximum(abs(self.live), abs(self.overhead))

    @property
    def turn_back(self) -> Flags:
        """Whether each range but the last changes either kind in the direction opposite to the next one's."""
        signs = np.sign(self.live), np.sign(self.overhead)
        return np.asarray(np.any([sign[:-1] * sign[1:] < 0 for sign in signs], axis=0))

    def exceed(self, threshold: Threshold, limits: tuple[Integers, Integers]) -> Flags:
        """Return whether each changes requested bytes or overhead by more than ``threshold`` and than its own limit.

        Args:
            threshold: for all.
            limits: of requested bytes and of overhead, a row for each range.
        """
        live, overhead = limits
        return np.asarray(
            (abs(self.live) > np.maximum(threshold.requested_bytes, live))
            | (abs(self.overhead) > np.maximum(threshold.overhead_bytes, overhead))
        )

    def step(self, place: int) -> Step:
        """Return one range as a step."""
        live, overhead = int(self.live[place]), int(self.overhead[place])
        delta = Bytes(requested_bytes=live, reserved_bytes=live + overhead if self.is_overhead_known else None)
        return Step(after=int(self.before[place]), at=int(self.after[place]), delta=delta)
