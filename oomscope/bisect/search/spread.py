"""How much the bytes of one position differ from probe to probe, and when two positions differ by more than that: pure.

The spread of one probe is taken to be the same along the line: every position that was measured more than once adds to
one estimate (the pooled standard deviation). Two means differ where Student's t says so; with the few probes that there
are a normal law would be too sure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.steps import Threshold

_WIDEST = 2**62
"""More than any difference of bytes."""


@dataclass(frozen=True, kw_only=True)
class ProbeSpread:
    """The standard deviation of one probe."""

    requested_bytes: float
    overhead_bytes: float
    """0 where reserved bytes are not known."""
    freedom: int
    """Degrees of freedom: probes less positions. With none nothing is known of the spread."""

    @classmethod
    def of(cls, samples: Iterable[Sequence[Bytes]]) -> ProbeSpread:
        """Return the spread pooled over positions, each with its measurements."""
        repeated = [values for values in samples if len(values) > 1]
        freedom = sum(len(values) - 1 for values in repeated)
        live = _pooled([[value.requested_bytes for value in values] for values in repeated], freedom)
        overhead = _pooled([[value.overhead_bytes or 0 for value in values] for values in repeated], freedom)
        return cls(requested_bytes=live, overhead_bytes=overhead, freedom=freedom)

    def limit(self, probes: int, confidence: float) -> Threshold:
        """Return what the means of two positions may differ by without a difference being shown.

        Args:
            probes: of either position.
            confidence: probability that means of equal positions differ by no more.
        """
        if self.freedom == 0:
            return Threshold.of(_WIDEST)
        width = student(confidence, self.freedom) * math.sqrt(2 / probes)
        return Threshold(
            requested_bytes=int(width * self.requested_bytes), overhead_bytes=int(width * self.overhead_bytes)
        )


def mean(values: Sequence[Bytes]) -> Bytes:
    """Return the mean of at least one measurement, in whole bytes."""
    count, total = len(values), sum(values, start=Bytes())
    return Bytes(
        requested_bytes=round(total.requested_bytes / count),
        reserved_bytes=None if total.reserved_bytes is None else round(total.reserved_bytes / count),
    )


@lru_cache(maxsize=1024)
def student(confidence: float, freedom: int) -> float:
    """Return the t that a Student variable of ``freedom`` degrees stays within, on either side, with ``confidence``."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.tan(high) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return P(abs(t) <= sqrt(freedom) * tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for power in range(1 if is_odd else 0, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


def _pooled(groups: Sequence[Sequence[int]], freedom: int) -> float:
    squares = 0.0
    for group in groups:
        centre = sum(group) / len(group)
        squares += sum((value - centre) ** 2 for value in group)
    return math.sqrt(squares / freedom) if freedom else 0.0
