"""What a chart shows, in the units of its data. ``html.py`` draws it into a page, ``png.py`` into a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomscope.report.charts.axis import Axis
from oomscope.units import format_size

Outline = tuple[tuple[float, float], ...]
"""Corners of a shape, x to the right and y down, within 7 of the middle."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A reference line across a chart, such as what the process may use."""

    value: int
    label: str

    @property
    def text(self) -> str:
        """``may use 80.00 GiB``."""
        return f"{self.label} {format_size(self.value)}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points, or the area below it."""

    points: Sequence[tuple[float, float]]
    """x and y in the units of the data."""
    style: str
    """CSS classes; a picture takes its colour from the last one that it knows."""
    is_filled: bool = False
    """Filled down to the axis."""
    is_stepped: bool = False
    """Each y holds from its x to the next x; the last point closes the line."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The form of a mark that is no dot."""

    name: str
    """Id of its outline in a page."""
    outline: Outline
    is_filled: bool


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point that is marked."""

    x: float
    y: float
    style: str
    title: str = ""
    """Shown where it is pointed at."""
    name: str = ""
    """Written beside it."""
    shape: Shape | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """Words beside a point."""

    x: float
    y: float
    text: str
    detail: str = ""
    """Left out where there is little room."""
    is_above: bool = True
    is_left: bool = False


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of the legend."""

    text: str
    style: str = ""
    size: str = ""
    shape: Shape | None = None


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A name below the x axis."""

    x: float
    text: str
    detail: str = ""
    """A second line, in a picture alone."""
    width: float = 0.0
    """Of the part of the axis that it names, in the units of x; 0 for a point."""
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One chart with an x axis from 0 and a y axis."""

    kind: str
    """CSS class of the chart."""
    title: str
    width: float
    """Where the x axis ends."""
    axis: Axis
    lines: Sequence[Line] = ()
    """Drawn in this order."""
    marks: Sequence[Mark] = ()
    uprights: Sequence[tuple[float, str]] = ()
    """x and style of lines from bottom to top."""
    notes: Sequence[Note] = ()
    legend: Sequence[Key] = ()
    level: Level | None = None
    ends: tuple[str, str] | None = None
    """What stands below both ends of the x axis."""
    ticks: Sequence[Tick] = ()
    caption: str = ""

    @property
    def is_level_drawn(self) -> bool:
        """Whether the level lies on the axis; otherwise it is only named."""
        return self.level is not None and self.level.value <= self.axis.top

    @property
    def level_text(self) -> str:
        """``may use 80.00 GiB: off the scale``; empty without a level."""
        if self.level is None:
            return ""
        return self.level.text if self.is_level_drawn else f"{self.level.text}: off the scale"

    def across(self, x: float) -> float:
        """Return where ``x`` lies on its axis, from 0 to 1."""
        return x / self.width
