"""The shapes that terminal reports are made of: titled sections, tables, facts and bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 24
GAP = 3
"""Blanks between the columns of a table."""
LONGEST_WORD = 24
"""Characters of a word for which a column is widened; a longer one, such as a path, may be broken."""


def section(title: str, body: RenderableType) -> RenderableType:
    """Return ``body`` under a title, set off by a blank line; in rich's Padding long sentences would be cut."""
    return Group(Text(), Text(title, style="bold"), body)


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and what is to be said of each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def table(*headers: str) -> Table:
    """Return an empty table.

    A header that begins with ``>`` is a column of numbers, which are never broken; one that begins with ``?`` a
    column that is left out where there is no room for it.
    """
    rows = FittedTable()
    for header in headers:
        name = header.lstrip(">?")
        optional = header.startswith("?")
        rows.add_column(name, justify="right" if header.startswith(">") else "left", no_wrap=header != name)
        if optional:
            rows.optional.add(len(rows.columns) - 1)
    return rows


class FittedTable(Table):
    """A table that breaks its text between words, and no number.

    Where there is not room enough for its numbers, each row is a block of lines.
    """

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        self.optional: set[int] = set()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [[_text(cell) for cell in (column.header, *column.cells)] for column in self.columns]
        widths = self._widths(texts, options.max_width)
        if sum(widths.values()) + GAP * (len(widths) - 1) > options.max_width:
            yield from self._stacked(texts, list(widths)).__rich_console__(console, options)
            return
        plain = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        for index, width in widths.items():
            plain.add_column(texts[index][0], justify=self.columns[index].justify, overflow="fold", width=width)
        for number, row in enumerate(self.rows, start=1):
            plain.add_row(*(texts[index][number] for index in widths), end_section=row.end_section)
        yield from plain.__rich_console__(console, options)

    def _widths(self, texts: Sequence[Sequence[Text]], room: int) -> dict[int, int]:
        """Return the width of each column that is shown: no less than its longest word, or its widest number."""
        widest = [max(text.cell_len for text in column) for column in texts]
        least = [
            wide if column.no_wrap else min(LONGEST_WORD, max(_longest_word(text) for text in cells))
            for column, cells, wide in zip(self.columns, texts, widest, strict=True)
        ]
        shown = [index for index, wide in enumerate(widest) if wide]
        for index in sorted(self.optional, reverse=True):
            if sum(least[other] for other in shown) + GAP * (len(shown) - 1) > room:
                shown.remove(index)
        spare = room - sum(least[index] for index in shown) - GAP * (len(shown) - 1)
        widths = {}
        wanting = sorted(shown, key=lambda index: widest[index] - least[index])
        for position, index in enumerate(wanting):
            more = max(0, min(widest[index] - least[index], spare // (len(wanting) - position)))
            widths[index] = least[index] + more
            spare -= more
        return dict(sorted(widths.items()))

    def _stacked(self, texts: Sequence[Sequence[Text]], shown: Sequence[int]) -> Table:
        """Return each row as a block of lines, a header and its value each: columns would break numbers."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", overflow="fold")
        grid.add_column(overflow="fold")
        for number in range(1, len(self.rows) + 1):
            if number > 1:
                grid.add_row("", "")
            for index in shown:
                header, value = texts[index][0], texts[index][number]
                if value.plain.strip():
                    grid.add_row(header, value)
        return grid


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _longest_word(text: Text) -> int:
    return max(map(len, text.plain.split()), default=0)


def bar(part: int, whole: int, width: int = BAR_WIDTH) -> str:
    """Return ``part`` of ``whole`` as a bar of at most ``width`` characters."""
    return "█" * round(width * part / whole) if whole > 0 and part > 0 else ""
