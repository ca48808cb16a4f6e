"""How far a metric may be worse than its baseline before the gate reports it, and before it fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Final

from oomscope.config.problems import shown
from oomscope.errors import InputError
from oomscope.units import parse_size

_PERCENT: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*%\s*")
_MOST: Final = 2**100
_REMEDY: Final = "write a size such as 64MiB, a share such as 2%, or a list of both"


@dataclass(frozen=True, kw_only=True)
class Band:
    """A distance from a baseline: the larger of an absolute one and a share of the baseline."""

    absolute: int = 0
    """In the metric's own unit: bytes, or operations."""
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
        if not parts or absolute > _MOST or relative > _MOST:
            raise InputError(f"{shown(value)} is not a band", remedy=_REMEDY)
        return cls(absolute=absolute, relative=relative)


@dataclass(frozen=True, kw_only=True)
class Bands:
    """What is only reported (beyond ``warn``) and what fails (beyond ``fail``); both are one-sided."""

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
