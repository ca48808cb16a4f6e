"""What the gate watches: the metrics of a measurement, and how far each may be worse before it is reported or fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from oomscope.config.problems import shown
from oomscope.errors import InputError
from oomscope.probe.demand import is_lower_bound, requested_bytes, reserved_bytes
from oomscope.probe.result import ProbeResult, ReservedPeak
from oomscope.units import MiB, parse_size

_PERCENT: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*%\s*")
MOST: Final = 2**100
"""Largest value of any metric: bytes stay below 2**63, and operations of an iteration may pass it."""
_REMEDY: Final = "write a size such as 64MiB, a share such as 2%, or a list of both"


@dataclass(frozen=True, kw_only=True)
class Band:
    """A distance from a baseline: the larger of an absolute one and a share of the baseline."""

    absolute: int = 0
    """Distance in the metric's own unit: bytes, or operations."""
    relative: Fraction = field(default_factory=Fraction)
    """Share of the baseline; exact, so that a band does not depend on rounding."""

    def width(self, expected: int) -> int:
        """Return how much worse than ``expected`` is still inside, in the metric's own unit."""
        return max(self.absolute, int(expected * self.relative))

    def at_least(self, other: Band) -> Band:
        """Return a band as wide as this one and as ``other``, whatever is expected."""
        return Band(absolute=max(self.absolute, other.absolute), relative=max(self.relative, other.relative))

    def to_text(self) -> str | list[str]:
        """Return the band as a suite has it, exactly."""
        share = Decimal(self.relative.numerator * 100) / Decimal(self.relative.denominator)
        parts = [str(self.absolute)] if self.absolute or not self.relative else []
        parts += [f"{share}%"] if self.relative else []
        return parts[0] if len(parts) == 1 else parts

    @classmethod
    def parse(cls, value: object) -> Band:
        """Return the band that a suite or baseline means by ``value``: a size, a number, a share, or a list of these.

        Raises:
            InputError: it is none of these.
        """
        parts: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
        absolute, relative = 0, Fraction()
        for part in parts:
            share = _PERCENT.fullmatch(part) if isinstance(part, str) else None
            if share is not None:
                relative = max(relative, Fraction(share["number"]) / 100)
            else:
                absolute = max(absolute, _size(part))
        if not parts or absolute > MOST or relative > MOST:
            raise InputError(f"{shown(value)} is not a band", remedy=_REMEDY)
        return cls(absolute=absolute, relative=relative)


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Distances beyond which a metric is reported (``warn``) or fails (``fail``); both are one-sided."""

    warn: Band = field(default_factory=Band)
    fail: Band = field(default_factory=Band)


EXACT: Final = Bands()
"""Nothing worse is allowed."""


def _size(part: object) -> int:
    try:
        if isinstance(part, int | str) and not isinstance(part, bool):
            return parse_size(part)
    except InputError:
        pass
    raise InputError(f"{shown(part)} is not a band", remedy=_REMEDY)


SEGMENT: Final = Bands(warn=Band(), fail=Band(absolute=20 * MiB))
"""Reserved bytes come in segments: one large one (20 MiB, ``kLargeBuffer`` of CUDACachingAllocator) more or less turns
on the order of allocations, so any commit may move it once."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a measurement."""

    name: str
    meaning: str
    """Meaning of the metric, for the documentation."""
    read: Callable[[ProbeResult], int | None]
    """Reads the metric; None where the measurement does not have it."""
    bands: Bands = EXACT
    """Bands of the metric, if neither the suite nor the baseline has any."""
    is_worse_when_larger: bool = True
    by_default: bool = True
    """Whether a case without a list of metrics has it."""
    is_bytes: bool = True


def _peak_requested(result: ProbeResult) -> int | None:
    return None if result.peak is None or is_lower_bound(result) else requested_bytes(result)


def _peak_reserved(result: ProbeResult) -> int | None:
    cut = result.demand_cut or (result.outcome == "oom" and result.demand_peak is None)
    return None if result.peak is None or cut else reserved_bytes(result)


def _uncut_peak(result: ProbeResult) -> ReservedPeak | None:
    """Return where most was reserved, in a run that no limit made otherwise."""
    is_cut = result.outcome == "oom" or result.demand_peak is not None
    return None if is_cut else result.reserved_peak


def _overhead(result: ProbeResult) -> int | None:
    highest = _uncut_peak(result)
    return None if highest is None else highest.overhead_bytes


def _largest_free(result: ProbeResult) -> int | None:
    highest = _uncut_peak(result)
    return None if highest is None else highest.largest_free_bytes


def _non_torch(result: ProbeResult) -> int | None:
    return result.non_torch_bytes if result.backend == "cuda" else None


def _flops(result: ProbeResult) -> int | None:
    return sum(result.flops.values()) if result.flops else None


_ALL: Final = (
    Metric(
        name="peak_requested",
        meaning="most bytes requested at once; after an OOM, of the same run without a limit",
        read=_peak_requested,
    ),
    Metric(
        name="peak_reserved",
        meaning="most bytes that the allocator held, without a limit where it had to empty its cache",
        read=_peak_reserved,
        bands=SEGMENT,
    ),
    Metric(
        name="overhead",
        meaning="reserved less requested bytes when most was reserved, up to a large segment; only of runs that fit "
        "without emptying the cache",
        read=_overhead,
        bands=SEGMENT,
        by_default=False,
    ),
    Metric(
        name="largest_free",
        meaning="the largest free block that the allocator held at that moment; less is worse",
        read=_largest_free,
        bands=SEGMENT,
        is_worse_when_larger=False,
        by_default=False,
    ),
    Metric(
        name="pinned",
        meaning="most pinned bytes of the host; after an OOM, of the same run without a limit",
        read=lambda result: None if is_lower_bound(result) else result.pinned_bytes,
    ),
    Metric(
        name="non_torch",
        meaning="bytes that the process holds outside PyTorch: context, cuBLAS, NCCL (cuda only)",
        read=_non_torch,
        bands=Bands(warn=Band(), fail=Band(absolute=64 * MiB)),
    ),
    Metric(
        name="flops",
        meaning="floating-point operations of an iteration, recomputation included (bundled transformer only)",
        read=_flops,
        is_bytes=False,
    ),
)
METRICS: Final[Mapping[str, Metric]] = MappingProxyType({metric.name: metric for metric in _ALL})
"""All metrics by name, in the order of reports."""
REQUESTED: Final = "peak_requested"
"""Metric without which nothing says how much memory a case takes."""


def values_of(result: ProbeResult) -> dict[str, int]:
    """Return every metric of ``result``; none where nothing was measured."""
    if result.outcome == "error":
        return {}
    read = {name: metric.read(result) for name, metric in METRICS.items()}
    return {name: value for name, value in read.items() if value is not None}
