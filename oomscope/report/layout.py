"""The shapes that terminal reports are made of: titled sections, tables, facts and bars."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 24


def section(title: str, body: RenderableType) -> RenderableType:
    """Return ``body`` under a title, set off by a blank line."""
    return Padding(Group(Text(title, style="bold"), body), (1, 0, 0, 0), expand=False)


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and what is to be said of each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def table(*headers: str) -> Table:
    """Return an empty table; a header that begins with ``>`` is a column of numbers."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for header in headers:
        name = header.removeprefix(">")
        rows.add_column(name, justify="left" if name == header else "right", overflow="fold")
    return rows


def bar(part: int, whole: int, width: int = BAR_WIDTH) -> str:
    """Return ``part`` of ``whole`` as a bar of at most ``width`` characters."""
    return "█" * round(width * part / whole) if whole > 0 and part > 0 else ""
