"""How far a metric may be worse than its baseline before the gate says so, and before it fails."""

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
"""Of any number, as of those that are measured."""
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
        """Return the band that is as wide as this one and as ``other``, whatever is expected."""
        return Band(absolute=max(self.absolute, other.absolute), relative=max(self.relative, other.relative))

    def is_wider(self, other: Band) -> bool:
        """Whether this one is the wider whatever is expected, and never the narrower."""
        mine, its = (self.absolute, self.relative), (other.absolute, other.relative)
        return mine != its and self.absolute >= other.absolute and self.relative >= other.relative

    def to_text(self) -> str | list[str]:
        """Return the band as a suite has it, exactly."""
        parts = []
        if self.absolute or not self.relative:
            parts.append(str(self.absolute))
        if self.relative:
            parts.append(f"{_decimal(100 * self.relative)}%")
        return parts[0] if len(parts) == 1 else parts

    @classmethod
    def parse(cls, value: object) -> Band:
        """Return the band that a suite or baseline means by ``value``: a size, a number, a share, or a list of both.

        Raises:
            InputError: it is none of these.
        """
        parts: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
        absolute, relative = 0, Fraction()
        if not parts:
            raise InputError("an empty list is not a band", remedy=_REMEDY)
        for part in parts:
            if not isinstance(part, int | str) or isinstance(part, bool):
                raise InputError(f"{shown(part)} is not a band", remedy=_REMEDY)
            share = _PERCENT.fullmatch(part) if isinstance(part, str) else None
            if share is not None:
                relative = max(relative, Fraction(share["number"]) / 100)
            else:
                absolute = max(absolute, _size(part))
        if absolute > _MOST or relative > _MOST:
            raise InputError("a band beyond all that is measured", remedy=_REMEDY)
        return cls(absolute=absolute, relative=relative)


@dataclass(frozen=True, kw_only=True)
class Bands:
    """What is merely told (beyond ``warn``) and what fails (beyond ``fail``); both are one-sided."""

    warn: Band = field(default_factory=Band)
    fail: Band = field(default_factory=Band)


EXACT: Final = Bands()
"""Nothing worse is allowed."""


def _size(part: int | str) -> int:
    try:
        return parse_size(part)
    except InputError:
        raise InputError(f"{shown(part)} is not a size", remedy=_REMEDY) from None


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)
