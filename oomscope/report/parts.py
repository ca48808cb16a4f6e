"""What a report consists of: lines, facts, tables, commands and figures, each described once.

The report of a command is a sequence of these parts. ``text/layout.py`` draws them for a terminal and ``html/page.py``
into a page, so that both show the same words and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from oomscope.units import format_size

if TYPE_CHECKING:
    from markupsafe import Markup

Kind: TypeAlias = Literal["text", "code", "category", "size", "change", "count", "share", "number", "bar"]
"""How the values of a column are written: ``size`` in bytes, ``change`` signed, ``number`` words set to the right."""
NUMBERS = frozenset({"size", "change", "count", "share", "number"})


@dataclass(frozen=True, kw_only=True)
class Span:
    """A bar from ``start`` to ``end``, as shares of the column's width."""

    start: float = 0.0
    end: float
    tone: str = "accent"
    """Tone: ``accent``, ``good``, ``bad`` or ``quiet``."""


def bar(part: float, whole: float, tone: str = "accent") -> Span:
    """Return a bar from zero; an empty one where there is no whole."""
    return Span(end=max(0.0, part / whole) if whole > 0 else 0.0, tone=tone)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as it is shown."""

    text: str
    tone: str = ""
    """Tone: ``good``, ``bad``, ``warn``, ``soft``, or the name of a category; a CSS class on a page."""
    title: str = ""
    """The whole text, where ``text`` is shortened."""
    number: float | None = None
    """Number that a page sorts by."""
    span: Span | None = None
    link: str = ""
    """An address that a page opens beside the text."""
    details: Sequence[str] = ()
    """A caption and lines that a page shows when the cell is opened."""


Value: TypeAlias = "Cell | Span | str | float | None"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind = "text"
    width: int = 24
    """Characters of a bar on a terminal."""

    @property
    def is_number(self) -> bool:
        """Whether its values stand at the right and are never broken."""
        return self.kind in NUMBERS

    def cell(self, value: Value) -> Cell:
        """Return ``value`` as it is shown; a dash for an unknown number."""
        if isinstance(value, Cell):
            return value
        if isinstance(value, Span):
            return Cell(text="", span=value)
        if value is None:
            return Cell(text="-" if self.is_number else "")
        if isinstance(value, str):
            if self.kind == "category":
                return Cell(text=value.replace("_", " "), tone=value)
            return Cell(text=value)
        if self.kind in {"size", "change"}:
            return Cell(text=format_size(int(value), signed=self.kind == "change"), number=value)
        return Cell(text=f"{100 * value:.1f} %" if self.kind == "share" else f"{value:,}", number=value)


def columns(*specs: str) -> tuple[Column, ...]:
    """Return columns, each given as ``kind:Name``, or as the name of a column of text."""
    found = []
    for spec in specs:
        kind, _, name = spec.rpartition(":")
        found.append(Column(name=name, kind=cast("Kind", kind or "text")))
    return tuple(found)


Row: TypeAlias = Sequence[Value]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table under a title; without rows it is left out."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Row]
    total: Row | None = None
    """The last row, set off: what the others sum to."""
    hint: str = ""
    """Explanation of the table, shown on a page alone."""
    name: str = ""
    """Id of the element of a page."""
    marked: int | None = None
    """Index of the row that is at fault."""
    is_sum: bool = False
    """Whether rows add up even without a total: those left out become one row with their sums."""


def cut(table: Table, shown: int, noun: str) -> Table:
    """Return ``table`` with the rows beyond ``shown`` as one; one row alone is shown."""
    if len(table.rows) <= shown + 1:
        return table
    rest = table.rows[shown:]
    label = max(
        (at for at, each in enumerate(table.columns) if each.kind in {"text", "code"}),
        key=lambda at: (table.columns[at].kind == "code", at),
        default=0,
    )
    last: list[Value] = ["" for _ in table.columns]
    for at, column in enumerate(table.columns):
        numbers = [value for row in rest if isinstance(value := row[at], int | float)]
        if column.kind in {"size", "change", "count"} and numbers and (table.is_sum or table.total):
            last[at] = sum(numbers)
    last[label] = f"{len(rest):,} further {noun}s"
    return replace(table, rows=[*table.rows[:shown], last])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A sentence: ``label: strong text``."""

    text: str = ""
    label: str = ""
    strong: str = ""
    """Text in bold before the rest."""
    link: str = ""
    """The address that a page opens from ``strong``."""
    tone: str = ""
    is_status: bool = False
    """Whether it is the answer of the report."""


BLANK = Line()
"""Blank line on a terminal."""


def line(text: str, tone: str = "") -> Line:
    """Return a sentence."""
    return Line(text=text, tone=tone)


def status(text: str, tone: str = "") -> Line:
    """Return the answer of a report."""
    return Line(text=text, tone=tone, is_status=True)


def note(text: str, tone: str = "soft") -> Line:
    """Return a remark that limits an answer."""
    return Line(text=f"note: {text}", tone=tone)


def advice(text: str) -> Line:
    """Return what to do."""
    return Line(label="What to do", strong=text)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over the run, as a small picture on a terminal."""

    values: Sequence[int | None]


Known: TypeAlias = str | Line | Curve | Sequence[tuple[str, str, str]]
"""Facts on a name: a text, a curve, or rows of size, category and place."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names, and what is known of each."""

    rows: Sequence[tuple[str, Known]]


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The title of what follows."""

    text: str
    level: int = 2


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Shell commands to paste, under a title."""

    title: str = ""
    commands: Sequence[str]
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart; on a page alone."""

    title: str
    markup: Markup
    hint: str = ""
    data: Markup | None = None
    """JSON for the script of the page, in an element with the id ``name``."""
    name: str = ""


Part: TypeAlias = Line | Facts | Table | Heading | Commands | Figure


Report: TypeAlias = Iterable[Part]
"""The parts of a report, in order; many reports yield them, and can be drawn once."""
