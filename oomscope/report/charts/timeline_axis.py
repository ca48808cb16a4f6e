"""What stands under a timeline: its axis in time or in events, and bands of iterations, microbatches and phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final
from xml.etree import ElementTree as ET

from oomscope.report.charts.html import SIDE, box, share
from oomscope.report.charts.plot import Tick, round_step
from oomscope.snapshot.explain.curves import Bins
from oomscope.snapshot.trace import Moment

WANTED: Final = 6
"""Ticks, more or less."""
NAMED_FROM: Final = 0.06
"""Share of the axis from which a part of a band is named."""
PHASES: Final = frozenset({"init", "forward", "loss", "backward", "optimizer"})
"""Those with a colour of their own."""
UNITS: Final = ((1_000_000, "s"), (1000, "ms"), (1, "µs"))


@dataclass(frozen=True, kw_only=True)
class Band:
    """What holds at each moment, such as the phase: a text and a CSS class each, both empty where it is unknown."""

    name: str
    of_moment: tuple[tuple[str, str], ...]


def bands_of(bins: Bins) -> list[Band]:
    """Return the bands that say something."""
    found = [
        Band(name=name, of_moment=tuple(map(told, bins.moments)))
        for name, told in (
            ("iteration", lambda each: _numbered(each.iteration)),
            ("microbatch", lambda each: _numbered(each.microbatch)),
            ("phase", _phase),
        )
    ]
    return [band for band in found if any(text for text, _ in band.of_moment)]


def _numbered(number: int) -> tuple[str, str]:
    return ("", "") if number < 0 else (str(number), "odd" if number % 2 else "even")


def _phase(moment: Moment) -> tuple[str, str]:
    return moment.phase, f"phase-{moment.phase if moment.phase in PHASES else 'other'}" if moment.phase else ""


def add_bands(parent: ET.Element, bins: Bins, drawn: Bins) -> None:
    """Draw the bands of ``bins`` in the columns of ``drawn``; a script draws them for another part of the run."""
    bands = bands_of(bins)
    if not bands:
        return
    element = box(parent, "bands", tag="div")
    edges = drawn.edges.tolist()
    for band in bands:
        row = box(element, "band-row", tag="div")
        box(row, "band-name", band.name)
        size = {"viewBox": f"0 0 {SIDE} 1", "preserveAspectRatio": "none", "role": "presentation"}
        svg = ET.SubElement(row, "svg", size)
        texts = [band.of_moment[each] for each in drawn.moment.tolist()]
        paths: dict[str, list[str]] = {}
        for (text, style), start, end in _runs(texts, edges):
            left, right = start / edges[-1], end / edges[-1]
            paths.setdefault(style, []).append(f"M{SIDE * left:.1f},0H{SIDE * right:.1f}V1H{SIDE * left:.1f}z")
            if right - left >= NAMED_FROM:
                box(row, "band-text", text, left=share(left, 1), width=share(right - left, 1))
        for style, pieces in paths.items():
            ET.SubElement(svg, "path", {"class": style, "d": "".join(pieces)})


def _runs(values: Sequence[tuple[str, str]], edges: Sequence[int]) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield each run of equal known values, and from where to where it reaches."""
    at = 0
    for value, group in groupby(values):
        length = len(list(group))
        if value[1]:
            yield value, edges[at], edges[at + length]
        at += length


def axis_ticks(bins: Bins) -> list[Tick]:
    """Return ticks of the axis, which begins at zero: seconds since the first event, or events."""
    end = int(bins.edges[-1])
    unit, name = next((each for each in UNITS if end >= each[0]), UNITS[-1]) if bins.is_by_time else (1, "")
    step = max(1, round(round_step(end / unit / WANTED) * unit)) if end else 1
    text: Callable[[int], str] = lambda at: f"{at / unit:g} {name}" if bins.is_by_time else f"{at:,}"  # noqa: E731
    return [Tick(x=at, text=text(at)) for at in range(0, max(1, end), step)]


def axis_data(bins: Bins) -> dict[str, Any]:
    """Return bands and axis as JSON values for the script."""
    return {
        "timed": bins.is_timed,
        "byTime": bins.is_by_time,
        "bands": [{"name": band.name, "of": band.of_moment} for band in bands_of(bins)],
    }
