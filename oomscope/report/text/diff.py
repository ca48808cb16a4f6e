"""A difference for the terminal: the answer, both peaks side by side, and the rows that sum to what is between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.report import diff_sentences
from oomscope.report.sentences import count, known_size, one_line
from oomscope.report.text.layout import facts, section, table
from oomscope.snapshot.compare.changes import Change, LineChange, NamedChange
from oomscope.snapshot.compare.diff import DeviceDifference, Difference
from oomscope.units import format_size

By: TypeAlias = Literal["line", "category", "module", "size"]
SHOWN: Final = 12
"""Rows of a table unless more are asked for."""
NUMBERS: Final = (">A", ">B", ">Difference", ">Blocks")

Row = TypeVar("Row")


def diff_report(difference: Difference, *, by: By | None = None, shown: int = SHOWN) -> RenderableType:
    """Return the device that grew most, after one line for each if there are several.

    Args:
        difference: what was compared.
        by: the one table to show; None for those by category and by line.
        shown: rows of a table; what is beyond is one row, so that the sum holds.
    """
    return Group(*_parts(difference, by, shown))


def _parts(difference: Difference, by: By | None, shown: int) -> Iterator[RenderableType]:
    yield Text(f"A  {one_line(difference.before_file)}\nB  {one_line(difference.after_file)}", style="dim")
    worst, *others = difference.devices
    if others:
        yield section(
            f"Peaks of requested memory by {'device' if worst.rank is None else 'rank'}",
            device_table(difference.devices),
        )
        why = ", which grew most" if worst.delta_bytes > 0 else ""
        yield Text(f"\n{diff_sentences.device_name(worst).capitalize()}{why}:", style="dim")
    style = "bold red" if worst.delta_bytes > 0 else "bold green" if worst.delta_bytes < 0 else "bold"
    yield Text(diff_sentences.headline(worst, difference.phase), style=style)
    yield Text()
    yield facts_table(worst)
    yield facts([("A's peak", diff_sentences.place(worst.before)), ("B's peak", diff_sentences.place(worst.after))])
    for kind in ("category", "line") if by is None else (by,):
        yield section(*_table(worst, kind, shown))
    if worst.phases and by is None:
        yield section("Peak of each phase; these do not sum", phase_table(worst))
    for remark in (*diff_sentences.remarks(worst), *diff_sentences.not_compared(difference)):
        yield Text(f"note: {remark}", style="dim")


def device_table(devices: Sequence[DeviceDifference]) -> Table:
    """Return the peaks of all devices, the one that grew most first."""
    rows = table("Device", ">A", ">B", ">Difference")
    for device in devices:
        sizes = (format_size(device.before.requested_bytes), format_size(device.after.requested_bytes))
        rows.add_row(diff_sentences.device_name(device), *sizes, format_size(device.delta_bytes, signed=True))
    return rows


def facts_table(device: DeviceDifference) -> Table:
    """Return both peaks side by side."""
    rows = table("", ">A", ">B", ">Difference")
    for fact in diff_sentences.facts(device):
        rows.add_row(*fact)
    return rows


def _table(device: DeviceDifference, by: By, shown: int) -> tuple[str, Table]:
    """Return one table with its title."""
    if by == "line":
        return "Requested at the peak, by line", line_table(device.lines, shown)
    tables: dict[By, tuple[NamedChange, ...]] = {
        "category": device.categories,
        "module": device.modules,
        "size": device.sizes,
    }
    title = "size of block" if by == "size" else by
    return f"Requested at the peak, by {title}", named_table(tables[by], title.capitalize(), shown)


def line_table(rows: Sequence[LineChange], shown: int = SHOWN) -> Table:
    """Return the lines that changed most, those that did not as one row, and the sum, which is that of the peaks."""
    grid = table(*NUMBERS, "Category", "Line")
    changed, same = ([row for row in rows if row.differs is differs] for differs in (True, False))
    top, rest = cut(changed, shown)
    for row in top:
        grid.add_row(*_numbers([row]), diff_sentences.name(row.category), diff_sentences.line(row))
    if rest:
        grid.add_row(*_numbers(rest), "", count(len(rest), "further line"))
    if same:
        grid.add_row(*_numbers(same), "", diff_sentences.unchanged(same))
    grid.add_section()
    grid.add_row(*_numbers(rows), "", "all")
    return grid


def named_table(rows: Sequence[NamedChange], title: str, shown: int = SHOWN) -> Table:
    """Return the names that changed most, the others as one row, and the sum, which is that of the peaks."""
    grid = table(*NUMBERS, title)
    top, rest = cut(rows, shown)
    for row in top:
        grid.add_row(*_numbers([row]), diff_sentences.name(row.name))
    if rest:
        grid.add_row(*_numbers(rest), f"{len(rest):,} further")
    grid.add_section()
    grid.add_row(*_numbers(rows), "all")
    return grid


def cut(rows: Sequence[Row], shown: int) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the rows to show, and those to add up; one alone is shown."""
    return (rows[:shown], rows[shown:]) if len(rows) > shown + 1 else (rows, ())


def _numbers(rows: Sequence[Change]) -> tuple[str, str, str, str]:
    """Return A, B, the difference and the blocks of all ``rows`` together."""
    before, after = sum(row.before_bytes for row in rows), sum(row.after_bytes for row in rows)
    blocks = diff_sentences.blocks(sum(row.before_count for row in rows), sum(row.after_count for row in rows))
    return format_size(before), format_size(after), format_size(after - before, signed=True), blocks


def phase_table(device: DeviceDifference) -> Table:
    """Return the peak of requested bytes in each phase of either side."""
    rows = table("Phase", ">A", ">B", ">Difference")
    for row in device.phases:
        both = row.before_bytes is not None and row.after_bytes is not None
        difference = format_size((row.after_bytes or 0) - (row.before_bytes or 0), signed=True) if both else ""
        rows.add_row(
            diff_sentences.name(row.name), known_size(row.before_bytes), known_size(row.after_bytes), difference
        )
    return rows
