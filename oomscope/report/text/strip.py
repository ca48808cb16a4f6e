"""The range of a search in one line of a terminal: what is known of each commit, and which are being probed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from oomscope.bisect.results.sections import WalkedLine
from oomscope.report.search_status import Asked, Bracket, Standing, standings

WIDEST: Final = 100
"""Columns at most: a wider strip is no easier to read."""
RUNNING: Final = "running"
_ORDER: Final = (RUNNING, Standing.BAD, Standing.GOOD, Standing.UNTESTABLE, Standing.OPEN)
"""What a column shows that stands for several commits: the first of these that one of them is."""
_SIGNS: Final = {
    RUNNING: ("▸", ">", "bold"),
    Standing.BAD: ("✗", "x", "red"),
    Standing.GOOD: ("✓", "+", "green"),
    Standing.UNTESTABLE: ("?", "?", "yellow"),
    Standing.OPEN: ("━", "=", "yellow"),
    Standing.BEFORE: ("·", ".", "dim green"),
    Standing.AFTER: ("·", ".", "dim red"),
}
"""Sign, sign in ASCII, and style: what a sign means is not told by its colour alone."""

Cell = Standing | str


class Strip:
    """A rich renderable as wide as it is given room.

    Args:
        line: the commits.
        asked: the probes so far.
        bracket: between which places the culprit is.
        running: places that are being probed.
    """

    def __init__(self, line: WalkedLine, asked: Sequence[Asked], bracket: Bracket, running: Collection[int]) -> None:
        self.line = line
        self.asked = asked
        self.bracket = bracket
        self.running = running

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        text = Text(no_wrap=True)
        for cell in self.cells(width):
            sign, plain, style = _SIGNS[cell]
            text.append(plain if options.ascii_only else sign, style=style)
        yield text

    def cells(self, width: int) -> list[Cell]:
        """Return what each of ``width`` columns shows."""
        states: list[Cell] = list(standings(self.line, self.asked, self.bracket))
        for place in self.running:
            states[place] = RUNNING
        count = len(states)
        if count < width:
            cells: list[Cell] = [self._beside(column * count // width) for column in range(width)]
            for place, state in enumerate(states):
                cells[(2 * place + 1) * width // (2 * count)] = state
            return cells
        edges = [column * count // width for column in range(width + 1)]
        return [_shown(states[first:end]) for first, end in pairwise(edges)]

    def _beside(self, place: int) -> Standing:
        """Return what is shown beside the sign of ``place`` where it has several columns."""
        if self.bracket.good is not None and place <= self.bracket.good:
            return Standing.BEFORE
        return Standing.AFTER if self.bracket.bad is not None and place >= self.bracket.bad else Standing.OPEN


def _shown(states: Sequence[Cell]) -> Cell:
    return next((state for state in _ORDER if state in states), states[0])
