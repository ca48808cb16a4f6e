"""Two recordings allocation by allocation, for the terminal: what differs, and what that makes of the peak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from oomscope.report.sentences import count, one_line, site_text
from oomscope.report.text.diff import cut
from oomscope.report.text.layout import facts, section, table
from oomscope.snapshot.compare.aligned import Aligned, Alignment, Kind, Row
from oomscope.units import format_size

SHOWN: Final = 12
_WORDS: Final[dict[Kind, str]] = {
    "only_before": "only in A",
    "only_after": "only in B",
    "resized": "another size",
    "freed_earlier": "B has freed it, A has not",
    "freed_later": "A has freed it, B has not",
    "older": "from before the recording",
}


def align_report(aligned: Aligned, *, shown: int = SHOWN) -> RenderableType:
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
        parts += _parts(alignment, shown)
    return Group(*parts)


def headline(alignment: Alignment) -> str:
    """Return the answer in one line."""
    if not alignment.rows:
        return f"THE SAME: {count(alignment.same, 'allocation')}, in the same order, at the same lines, as long alive"
    if not alignment.delta_bytes:
        return "THEY DIFFER, but not in requested bytes at B's peak"
    more = "MORE" if alignment.delta_bytes > 0 else "LESS"
    return f"B HAS {format_size(abs(alignment.delta_bytes))} {more} ALIVE AT ITS PEAK than A at the same place"


def _parts(alignment: Alignment, shown: int) -> Iterator[RenderableType]:
    yield Text(headline(alignment), style="bold green" if not alignment.rows else "bold")
    yield Text()
    yield facts(list(_facts(alignment)))
    if alignment.rows:
        yield section("What differs, and what it adds to B's requested bytes at its peak", _table(alignment, shown))


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


def _table(alignment: Alignment, shown: int) -> RenderableType:
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
