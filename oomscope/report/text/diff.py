"""A difference for the terminal: the answer, both peaks side by side, and the rows that sum to what is between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.report import diff_sentences
from oomscope.report.sentences import count, known_size, one_line, site_text
from oomscope.report.text.layout import facts, section, table
from oomscope.snapshot.compare.aligned import Aligned, Alignment, Kind, Row
from oomscope.snapshot.compare.changes import Change, LineChange, NamedChange
from oomscope.snapshot.compare.diff import DeviceDifference, Difference
from oomscope.units import format_size

By: TypeAlias = Literal["line", "category", "module", "size"]
SHOWN: Final = 12
"""Rows of a table unless more are asked for."""
NUMBERS: Final = (">A", ">B", ">Difference", ">Blocks")

Item = TypeVar("Item")


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


def cut(rows: Sequence[Item], shown: int) -> tuple[Sequence[Item], Sequence[Item]]:
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


EVENTS_SHOWN: Final = 12
_WORDS: Final[dict[Kind, str]] = {
    "only_before": "only in A",
    "only_after": "only in B",
    "resized": "another size",
    "freed_earlier": "B has freed it, A has not",
    "freed_later": "A has freed it, B has not",
    "older": "from before the recording",
}


def align_report(aligned: Aligned, *, shown: int = EVENTS_SHOWN) -> RenderableType:
    """Return the answer in one line, what is the same, and the rows that sum to the difference at B's peak.

    Args:
        aligned: what was compared, device by device.
        shown: rows of a table; what is beyond is one row, so that the sum holds.
    """
    files = f"A  {one_line(aligned.before_file)}\nB  {one_line(aligned.after_file)}"
    parts: list[RenderableType] = [Text(files, style="dim")]
    for alignment in aligned.devices:
        if len(aligned.devices) > 1:
            parts.append(Text(f"\nDevice {alignment.device}:", style="dim"))
        parts += _aligned_parts(alignment, shown)
    return Group(*parts)


def headline(alignment: Alignment) -> str:
    """Return the answer in one line."""
    if not alignment.rows:
        return f"THE SAME: {count(alignment.same, 'allocation')}, in the same order, at the same lines, as long alive"
    if not alignment.delta_bytes:
        return "THEY DIFFER, but not in requested bytes at B's peak"
    more = "MORE" if alignment.delta_bytes > 0 else "LESS"
    return f"B HAS {format_size(abs(alignment.delta_bytes))} {more} ALIVE AT ITS PEAK than A at the same place"


def _aligned_parts(alignment: Alignment, shown: int) -> Iterator[RenderableType]:
    yield Text(headline(alignment), style="bold green" if not alignment.rows else "bold")
    yield Text()
    yield facts(list(_facts(alignment)))
    if alignment.rows:
        yield section(
            "What differs, and what it adds to B's requested bytes at its peak", _aligned_table(alignment, shown)
        )


def _event(event: int) -> str:
    return f"event {event:,}" if event >= 0 else "before the first event"


def _facts(alignment: Alignment) -> Iterator[tuple[str, str]]:
    yield "Same size and place", count(alignment.same, "allocation")
    yield "Another size", count(alignment.resized, "allocation")
    for name, number, size in (
        ("Only in A", alignment.only_before, alignment.only_before_bytes),
        ("Only in B", alignment.only_after, alignment.only_after_bytes),
    ):
        yield name, f"{count(number, 'allocation')}, {format_size(size)} in all"
    peak = alignment.peak
    yield "B's peak", f"{format_size(peak.after_bytes)} requested, {_event(peak.after_event)}"
    own = format_size(alignment.before_peak_bytes)
    yield (
        "A at the same place",
        f"{format_size(peak.before_bytes)} requested, {_event(peak.before_event)}; its own peak: {own}",
    )
    if alignment.first is not None:
        yield (
            "First difference",
            f"{_WORDS[alignment.first.kind]}: {_sizes(alignment.first)}, {_place(alignment.first)}",
        )


def _aligned_table(alignment: Alignment, shown: int) -> RenderableType:
    grid = table(">Adds", ">Blocks", ">Size", "What", "Phase and line")
    top, rest = cut(alignment.rows, shown)
    for row in top:
        grid.add_row(_signed(row.delta_bytes), f"{row.count:,}", _sizes(row), _WORDS[row.kind], _place(row))
    if rest:
        left = sum(row.delta_bytes for row in rest)
        grid.add_row(_signed(left), f"{sum(row.count for row in rest):,}", "", f"{len(rest):,} further rows", "")
    grid.add_section()
    grid.add_row(_signed(alignment.delta_bytes), "", "", "all", "")
    return grid


def _signed(size: int) -> str:
    return format_size(size, signed=True)


def _sizes(row: Row) -> str:
    if row.kind in {"resized", "older"}:
        return f"{format_size(row.before_bytes)} → {format_size(row.after_bytes)}"
    return format_size(max(row.before_bytes, row.after_bytes))


def _place(row: Row) -> str:
    line = site_text(row.site) if row.site else "no line is known"
    return f"{row.phase}, {line}" if row.phase else line
