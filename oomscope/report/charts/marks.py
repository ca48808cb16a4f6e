"""How each verdict is drawn, on the page and in the picture: a shape of its own, so that colour says nothing alone.

Red is a regression alone. What passes is green, or amber where it is told; what has no answer is in the colour of text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from markupsafe import Markup

from oomscope.gate.night.status import GRAVITY, Status
from oomscope.report.charts.html import markup, shape_element
from oomscope.report.charts.plot import Outline, Shape


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How a verdict is drawn."""

    outline: Outline
    tone: str
    """CSS class, and name of a colour: ``good``, ``warn``, ``bad`` or ``none``."""
    is_filled: bool = True

    @property
    def style(self) -> str:
        """CSS classes."""
        return f"mark {self.tone}" if self.is_filled else f"mark {self.tone} hollow"


def _around(corners: int, radius: float, turn: float = 0.0, inner: float | None = None) -> Outline:
    """Return a regular polygon, its first corner above the middle; with ``inner`` a star."""
    radii = (radius,) if inner is None else (radius, inner)
    steps = corners * len(radii)
    angles = (math.tau * (step + turn) / steps - math.pi / 2 for step in range(steps))
    each = enumerate(angles)
    return tuple(
        (round(radii[at % len(radii)] * math.cos(angle), 2), round(radii[at % len(radii)] * math.sin(angle), 2))
        for at, angle in each
    )


CIRCLE: Final = _around(20, 4.2)
UP: Final = _around(3, 5.4)
DOWN: Final = _around(3, 5.4, 1.5)
RIGHT: Final = _around(3, 5.4, 0.75)
DIAMOND: Final = _around(4, 5.2)
SQUARE: Final = _around(4, 5.4, 0.5)
STAR: Final = _around(5, 6, inner=2.6)
DASH: Final = ((-5.0, -1.5), (5.0, -1.5), (5.0, 1.5), (-5.0, 1.5))
_ARM: Final = 1.6
PLUS: Final = tuple(
    (x * sign_x, y * sign_y)
    for (sign_x, sign_y), corner in (
        ((1, -1), ((_ARM, 5.2), (_ARM, _ARM), (5.2, _ARM))),
        ((1, 1), ((5.2, _ARM), (_ARM, _ARM), (_ARM, 5.2))),
        ((-1, 1), ((_ARM, 5.2), (_ARM, _ARM), (5.2, _ARM))),
        ((-1, -1), ((5.2, _ARM), (_ARM, _ARM), (_ARM, 5.2))),
    )
    for x, y in corner
)
CROSS: Final = tuple((round((x - y) * math.sqrt(0.5), 2), round((x + y) * math.sqrt(0.5), 2)) for x, y in PLUS)

MARKS: Final = {
    Status.SAME: Mark(outline=CIRCLE, tone="good"),
    Status.BETTER: Mark(outline=DOWN, tone="good"),
    Status.WARN: Mark(outline=UP, tone="warn"),
    Status.UNCONFIRMED: Mark(outline=DIAMOND, tone="warn", is_filled=False),
    Status.WORSE: Mark(outline=CROSS, tone="bad"),
    Status.NO_BASELINE: Mark(outline=CIRCLE, tone="none", is_filled=False),
    Status.INCOMPATIBLE: Mark(outline=SQUARE, tone="none", is_filled=False),
    Status.UNTESTABLE: Mark(outline=SQUARE, tone="none"),
    Status.UNMEASURED: Mark(outline=DASH, tone="none"),
    Status.UNFIT: Mark(outline=RIGHT, tone="none", is_filled=False),
    Status.UNUSABLE: Mark(outline=PLUS, tone="none"),
    Status.DEFECT: Mark(outline=STAR, tone="none"),
}


def shape_of(status: Status) -> Shape:
    """Return the mark of ``status``, whose outline :func:`outlines` holds."""
    found = MARKS[status]
    name = f"mark-{status.name.lower().replace('_', '-')}"
    return Shape(name=name, outline=found.outline, is_filled=found.is_filled)


def mark(status: Status) -> Markup:
    """Return the mark of ``status`` as it stands in a page; the word beside it says the same."""
    return markup(shape_element(shape_of(status), MARKS[status].style))


def outlines(statuses: Iterable[Status]) -> Markup:
    """Return the outlines of the marks of ``statuses``, once for the whole page."""
    svg = ET.Element("svg", {"class": "outlines", "aria-hidden": "true"})
    for status in in_order(statuses):
        symbol = ET.SubElement(svg, "symbol", id=shape_of(status).name, viewBox="-7 -7 14 14")
        ET.SubElement(symbol, "polygon", points=" ".join(f"{x:g},{y:g}" for x, y in MARKS[status].outline))
    return markup(svg)


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """Return each of ``statuses`` once, gravest first."""
    seen = set(statuses)
    return [status for status in GRAVITY if status in seen]
