"""The whole stack behind a line of a table, which a page shows when the line is opened."""

from __future__ import annotations

from typing import TypeAlias

from oomscope.report.parts import Cell
from oomscope.report.sentences import count, site_text
from oomscope.snapshot.accounting.stack_tree import LiveStacks, StackBytes
from oomscope.snapshot.sites import Site
from oomscope.units import format_size

Line: TypeAlias = tuple[str, int, str]
"""File, number and function."""


class Stacks:
    """The stacks of the ``most`` lines that hold most; none where ``live`` is None."""

    def __init__(self, live: LiveStacks | None = None, most: int = 60) -> None:
        self._live = live
        self._rows: dict[Line, list[StackBytes]] = {}
        if live is None:
            return
        for row in live.rows:
            line = _line_of(live.site(row))
            if line in self._rows or len(self._rows) < most:
                self._rows.setdefault(line, []).append(row)

    def cell(self, site: Site | None, category: str = "", text: str = "") -> Cell:
        """Return a line of code in short, or ``text``, with the whole path as its title and its stack behind it.

        The stack is one of blocks of ``category``; empty: of any.
        """
        title = str(site or "")
        return Cell(text=text or site_text(site), title=title, details=self._stack(site, category) if site else ())

    def _stack(self, site: Site, category: str) -> tuple[str, ...]:
        """Return a caption, and the frames of the stack that holds most, outermost first."""
        rows = [row for row in self._rows.get(_line_of(site), ()) if category in {"", row.category}]
        if self._live is None or not rows:
            return ()
        largest = max(rows, key=lambda row: max(row.bytes))
        moment = largest.bytes.index(max(largest.bytes))
        held = f"{format_size(largest.bytes[moment])} in {count(largest.blocks[moment], 'block')}"
        stacks = len({row.frames for row in rows})
        others = f", the largest of {count(stacks, 'stack')}" if stacks > 1 else ""
        frames = (
            site_text(Site(file=each.filename, line=each.line, function=each.name))
            for each in self._live.stack(largest)
        )
        return (f"{held} {self._live.moments[moment]}{others}", *frames)


def _line_of(site: Site) -> Line:
    return site.file, site.line, site.function


NO_STACKS = Stacks()
