"""Draws the parts of a report for a terminal: sentences, facts, tables, commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from oomscope.report.parts import Cell, Commands, Curve, Facts, Figure, Heading, Known, Line, Part, Span, Table

GAP: Final = 3
"""Blanks between the columns of a table."""
LONGEST_WORD: Final = 24
"""Characters of a word for which a column is widened; a longer one, such as a path, may be broken."""
STYLES: Final = {"good": "green", "bad": "red", "warn": "yellow", "soft": "dim"}


def drawn(parts: Iterable[Part]) -> Group:
    """Return ``parts`` for a terminal."""
    return Group(*(each for part in parts for each in _drawn(part)))


def _drawn(part: Part) -> Iterator[RenderableType]:
    match part:
        case Line():
            yield _line(part)
        case Facts():
            yield _facts(part)
        case Table() if part.rows:
            yield from _title(part.title)
            yield _table(part)
        case Heading():
            yield from _title(part.text)
        case Commands():
            yield from _title(part.title)
            if part.hint:
                yield Text(f"  {part.hint}", style="dim")
            for command in part.commands:  # whole, so that it can be copied
                yield Text(f"  {command}", no_wrap=True, overflow="ignore")
        case Figure() | Table():
            return


def _title(text: str) -> Iterator[Text]:
    if text:
        yield Text()
        yield Text(text, style="bold")


def _line(part: Line) -> Text:
    style = STYLES.get(part.tone, "")
    text = Text(f"{part.label}: " if part.label else "", style=f"bold {style}".strip() if part.is_status else style)
    return text.append(part.strong, style="bold").append(part.text)


def _facts(part: Facts) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1, overflow="fold")
    for name, value in part.rows:
        grid.add_row(name, _fact(value))
    return grid


def _fact(value: Known) -> RenderableType:
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Line):
        return _line(value)
    if isinstance(value, Curve):
        return Sparkline(value.values)
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for row in value:
        grid.add_row(*row)
    return grid


def _table(part: Table) -> Grid:
    rows = FittedTable()
    for index, each in enumerate(part.columns):
        is_bar = each.kind == "bar"
        rows.add_column(each.name, justify="right" if each.is_number else "left", no_wrap=is_bar or each.is_number)
        if is_bar:
            rows.optional.add(index)
    for row in (*part.rows, *([] if part.total is None else [part.total])):
        if row is part.total:
            rows.add_section()
        cells = zip(part.columns, row, strict=True)
        rows.add_row(*(_cell(column.cell(value), column.width) for column, value in cells))
    return rows


def _cell(cell: Cell, width: int) -> Text:
    if cell.span is not None:
        return Text(span_text(cell.span, width))
    return Text(cell.text, style=STYLES.get(cell.tone, ""))


def span_text(span: Span, width: int) -> str:
    """Return a bar of at most ``width`` characters: solid, or light for a step down.

    A step that is too small for a character still has one; a share of nothing has none.
    """
    low, high = round(width * span.start), round(width * span.end)
    if span.end <= span.start:
        return ""
    low = min(low, width - 1)
    is_step = span.start > 0 or span.tone != "accent"
    return " " * low + ("░" if span.tone == "good" else "█") * max(1 if is_step else 0, high - low)


class FittedTable(Grid):
    """A table that breaks its text between words, and no number.

    Where there is not room enough for its numbers, each row is a block of lines.
    """

    def __init__(self) -> None:
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        self.optional: set[int] = set()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [
            [cell if isinstance(cell, Text) else Text(str(cell)) for cell in (each.header, *each.cells)]
            for each in self.columns
        ]
        widths = self._widths(texts, options.max_width)
        if sum(widths.values()) + GAP * (len(widths) - 1) > options.max_width:
            yield from self._stacked(texts, list(widths)).__rich_console__(console, options)
            return
        plain = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
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

    def _stacked(self, texts: Sequence[Sequence[Text]], shown: Sequence[int]) -> Grid:
        """Return each row as a block of lines, a header and its value each: columns would break numbers."""
        grid = Grid.grid(padding=(0, 2))
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


def _longest_word(text: Text) -> int:
    return max(map(len, text.plain.split()), default=0)


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

    def __init__(self, values: Sequence[int | None]) -> None:
        self.values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = ASCII_BARS if options.ascii_only else BARS
        yield Text(sparkline(self.values, options.max_width, bars=bars), style="cyan", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, min(options.max_width, len(self.values))))
