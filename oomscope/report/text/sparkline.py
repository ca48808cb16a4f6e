"""A line of bars that fits the terminal: the shape of a timeline in one row of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=+*%#"


def sparkline(values: Sequence[int | None], width: int, *, bars: str = BARS) -> str:
    """Return ``values`` as at most ``width`` bars from zero to their maximum; each bar shows its slice's maximum.

    Where a slice has no value at all there is a blank.
    """
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    slices = [
        max((value for value in values[low:high] if value is not None), default=None) for low, high in pairwise(edges)
    ]
    top = max((value for value in slices if value is not None), default=0)
    return "".join(" " if value is None else _bar(value, top, bars) for value in slices)


def _bar(value: int, top: int, bars: str) -> str:
    return bars[min(len(bars) - 1, max(0, value) * len(bars) // top)] if top > 0 else bars[0]


class Sparkline:
    """A rich renderable that takes the width it is given."""

    def __init__(self, values: Sequence[int | None], style: str = "") -> None:
        self.values = values
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = ASCII_BARS if options.ascii_only else BARS
        yield Text(sparkline(self.values, options.max_width, bars=bars), style=self.style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, min(options.max_width, len(self.values))))
