"""The shapes that terminal reports are made of: titled sections, tables, facts and bars.

Shell commands in the width of a terminal: broken at their options with a backslash, which a shell joins. A word is
never broken, whatever is quoted in it; one that is wider than the terminal stands on a line of its own. Where there is
no terminal a command is one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
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


_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""", re.DOTALL)
_INDENT = 2
_CONTINUED = " \\"


@dataclass(frozen=True)
class ShellCommand:
    """A command to paste, set in from the sentence above it."""

    command: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = None if options.no_wrap else options.max_width - _INDENT
        for line in shell_lines(self.command, width):
            yield Text(f"{' ' * _INDENT}{line}", no_wrap=True, overflow="ignore")


def shell_lines(command: str, width: int | None) -> list[str]:
    """Return ``command`` in lines of at most ``width`` characters, as far as its words are no wider; whole for None."""
    if width is None or len(command) <= width or "\n" in command:
        return [command]
    lines = [""]
    for part in _parts(command, width - _INDENT - len(_CONTINUED)):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width - len(_CONTINUED):
            lines[-1] += _CONTINUED
            lines.append(" " * _INDENT + part)
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _parts(command: str, width: int) -> Iterator[str]:
    """Yield what stays on one line: words, and options with their values where these fit beside each other."""
    option = ""
    for word in _WORD.findall(command):
        if option and not word.startswith("-") and len(option) + 1 + len(word) <= width:
            yield f"{option} {word}"
            option = ""
            continue
        if option:
            yield option
        option = word if word.startswith("-") else ""
        if not option:
            yield word
    if option:
        yield option


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
