"""The shapes that terminal reports are made of: titled sections, tables, facts and bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from oomscope.report.wrapping import longest_piece, wrapped

BAR_WIDTH = 24
GAP = 3
"""Blanks between the columns of a table."""


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
    """A table whose text columns take the room that there is and break their text between words.

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
        else:
            yield from self._fitted(texts, widths).__rich_console__(console, options)

    def _widths(self, texts: Sequence[Sequence[Text]], room: int) -> dict[int, int]:
        """Return the width of each column that is shown: no less than its longest unbroken piece."""
        widest = [max(text.cell_len for text in column) for column in texts]
        least = [
            max(
                longest_piece(header.plain),
                *(text.cell_len if column.no_wrap else longest_piece(text.plain) for text in cells),
            )
            for column, (header, *cells) in zip(self.columns, texts, strict=True)
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

    def _fitted(self, texts: Sequence[Sequence[Text]], widths: dict[int, int]) -> Table:
        """Return a plain table of the columns in ``widths``, its text broken into lines already."""
        plain = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        lines = {index: [wrapped(text, width) for text in texts[index]] for index, width in widths.items()}
        for index, (header, *_) in lines.items():
            plain.add_column(header, justify=self.columns[index].justify, overflow="fold")
        for number, row in enumerate(self.rows, start=1):
            plain.add_row(*(column[number] for column in lines.values()), end_section=row.end_section)
        return plain


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def bar(part: int, whole: int, width: int = BAR_WIDTH) -> str:
    """Return ``part`` of ``whole`` as a bar of at most ``width`` characters."""
    return "█" * round(width * part / whole) if whole > 0 and part > 0 else ""
