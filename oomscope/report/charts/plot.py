"""What a chart shows, in the units of its data. ``html.py`` draws it into a page, ``png.py`` into a picture.

The y axis begins at zero, but for a trend whose values differ by less than a quarter of the largest: a step of 200 MiB
on a run of 60 GiB would be no pixel. Its axis begins below the smallest value, and the chart says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from oomscope.gate.suite.metrics import METRICS
from oomscope.units import EiB, GiB, KiB, MiB, PiB, TiB, format_size

WANTED: Final = 5
"""Approximate number of ticks."""
FAR: Final = 4
"""Multiple of the spread that the largest value reaches on an axis that does not begin at zero."""
NEAR: Final = 200
"""Divisor of the largest value: an axis shows at least that part of it, so that noise does not fill it."""
MOST_DIGITS: Final = 9
OFF_THE_SCALE: Final = 4
"""A level this many times above everything shown is named, not drawn: the rest would be too small to see."""
_UNITS: Final = ((EiB, "EiB"), (PiB, "PiB"), (TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"), (1, "B"))
_TERA: Final = (10**12, "TFLOP")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows."""

    low: int
    top: int
    ticks: tuple[int, ...]
    names: tuple[str, ...]
    """Text beside each tick."""

    def share(self, value: float) -> float:
        """Return where ``value`` lies, from 0 to 1."""
        return (value - self.low) / (self.top - self.low)


def axis_from_zero(largest: int, level: int | None = None, *, farthest: float = OFF_THE_SCALE) -> Axis:
    """Return an axis of bytes that ends at ``largest``, or at ``level`` up to ``farthest`` times above it."""
    is_on_scale = level is not None and level <= farthest * largest
    top = max(1, largest, level if level and is_on_scale else 0)
    unit, _ = _unit(top, is_bytes=True)
    step = round(_step(top, unit))
    ticks = tuple(range(0, top + 1, step))
    return Axis(
        low=0, top=top, ticks=ticks, names=tuple(format_size(tick, digits=1) if tick else "0" for tick in ticks)
    )


def axis_of(metric: str, values: Sequence[int]) -> Axis:
    """Return the axis of a trend: ``values`` of ``metric``."""
    least, most = (min(values), max(1, *values)) if values else (0, 1)
    is_bytes = metric not in METRICS or METRICS[metric].is_bytes
    unit, name = _unit(most, is_bytes=is_bytes)
    spread = most - least
    is_cut = 0 < FAR * spread < most
    span = max(1.5 * spread, most / NEAR) if is_cut else most
    step = _step(span, unit)
    room = (span - spread) / 2 if is_cut else 0.0
    first = math.floor((least - room) / step) if is_cut else 0
    top = max(most, round(most + room))
    ticks = tuple(round(number * step) for number in range(first, math.floor(top / step + 1e-9) + 1))
    digits = next((count for count in range(MOST_DIGITS) if _tells(ticks, step, unit, count)), MOST_DIGITS)
    names = tuple(f"{tick / unit:.{digits}f} {name}" if tick else "0" for tick in ticks)
    return Axis(low=ticks[0], top=max(top, ticks[-1]), ticks=ticks, names=names)


def _unit(most: int, *, is_bytes: bool) -> tuple[int, str]:
    if is_bytes:
        return next(row for row in _UNITS if most >= row[0])
    return _TERA if most >= 10**9 else (1, "FLOP")


def _step(span: float, unit: int) -> float:
    """Return 1, 2 or 5 times a power of ten of ``unit``, so that there are some ticks in ``span``; 1 at least."""
    return max(1.0, unit * round_step(span / unit / WANTED))


def round_step(rough: float) -> float:
    """Return 1, 2 or 5 times a power of ten, ``rough`` or somewhat more."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.999 * rough)


def _tells(ticks: Sequence[int], step: float, unit: int, digits: int) -> bool:
    """Whether so many digits show each tick, but for a small part of a step."""
    return all(abs(round(tick / unit, digits) * unit - tick) <= step / 50 for tick in ticks)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, or the area below it."""

    points: Sequence[tuple[float, float]]
    """Points as x and y in the units of the data."""
    style: str
    """CSS classes; a picture takes its colour from the last one that it knows."""
    is_filled: bool = False
    """Whether the area down to ``floor`` is filled."""
    floor: Sequence[float] = ()
    """Lower y at each point; empty for the axis."""
    is_stepped: bool = False
    """Whether each y holds from its x to the next x; the last point closes the line."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point that is marked."""

    x: float
    y: float
    style: str
    title: str = ""
    """Text shown under the pointer."""
    name: str = ""
    """Text beside the mark."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of the legend."""

    text: str
    style: str = ""
    size: str = ""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A name below the x axis."""

    x: float
    text: str
    width: float = 0.0
    """Width of the part of the axis that it names, in the units of x; 0 for a point."""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One chart with an x axis from 0 and a y axis."""

    kind: str
    """CSS class of the chart."""
    title: str
    width: float
    """End of the x axis."""
    axis: Axis
    lines: Sequence[Line] = ()
    """Lines in the order of drawing."""
    marks: Sequence[Mark] = ()
    uprights: Sequence[tuple[float, str]] = ()
    """Vertical lines as x and style."""
    legend: Sequence[Key] = ()
    level: int | None = None
    """Bytes that the process may use: a line across the chart."""
    ends: tuple[str, str] | None = None
    """Texts below both ends of the x axis."""
    ticks: Sequence[Tick] = ()
    caption: str = ""

    @property
    def is_level_drawn(self) -> bool:
        """Whether the level lies on the axis; otherwise it is only named."""
        return self.level is not None and self.level <= self.axis.top

    @property
    def level_text(self) -> str:
        """``may use 80.00 GiB: off the scale``; empty without a level."""
        if self.level is None:
            return ""
        return f"may use {format_size(self.level)}{'' if self.is_level_drawn else ': off the scale'}"

    def across(self, x: float) -> float:
        """Return where ``x`` lies on its axis, from 0 to 1."""
        return x / self.width
