"""What inside the commit is at fault, for the terminal: its hunks with their bytes and the lines that they wrote."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.bisect.results.sections import HunkChange, Narrowed
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences, sentences
from oomscope.report.text.layout import section, table
from oomscope.units import format_size

SITES_SHOWN = 3


def narrowed_sections(narrowed: Narrowed) -> Iterator[RenderableType]:
    """Yield the hunks at fault with their bytes, or the names of the keys, which have a table of their own."""
    if narrowed.keys:
        yield Text(f"\nAt fault of the {narrowed.candidates} keys: {', '.join(narrowed.keys)}", style="bold")
    if narrowed.hunks:
        yield section(hunks_title(narrowed), hunk_table(narrowed))


def hunks_title(narrowed: Narrowed) -> str:
    """Return how many hunks are at fault, and of how many that is not known apart from others."""
    guilty = f"{sentences.count(len(narrowed.guilty), 'hunk')} of {narrowed.candidates} in this commit"
    if not narrowed.lumped:
        return f"At fault: {guilty}"
    if narrowed.lumped == len(narrowed.guilty):
        return f"At fault, but they cannot be told apart: {guilty}"
    return f"At fault: {guilty}, {narrowed.lumped} of which cannot be told apart"


def hunk_table(narrowed: Narrowed) -> Table:
    """Return the hunks with the bytes that each brings by itself; the rows with bytes sum to the commit's."""
    rows = table(">#", "Hunk", "In", ">Requested", ">Reserved", "Lines that it wrote")
    for hunk in narrowed.hunks:
        sizes = _sizes(hunk.delta) if hunk.is_guilty else ("not at fault", "")
        rows.add_row(str(hunk.number), hunk.name, hunk.section, *sizes, _sites(hunk))
    rows.add_section()
    if len(narrowed.guilty) > 1:
        is_known = all(hunk.delta is not None for hunk in narrowed.guilty)
        label = "only together" if is_known else "together, or not measured"
        rows.add_row("", label, "", *_sizes(narrowed.interaction), "")
    if narrowed.candidates > len(narrowed.guilty):
        rows.add_row("", "all other hunks", "", *_sizes(narrowed.rest), "")
    rows.add_row("", "the commit", "", *_sizes(narrowed.delta + narrowed.rest), "")
    return rows


def _sizes(delta: Bytes | None) -> tuple[str, str]:
    if delta is None:
        return "not measured", ""
    return format_size(delta.requested_bytes, signed=True), sentences.known_size(delta.reserved_bytes, signed=True)


def _sites(hunk: HunkChange) -> str:
    rows = sorted(hunk.sites, key=lambda row: -abs(row.delta_bytes))
    lines = [f"{bisect_sentences.growth_text(row)} {format_size(row.delta_bytes, signed=True)}" for row in rows]
    more = [f"and {sentences.count(len(lines) - SITES_SHOWN, 'further line')}"] if len(lines) > SITES_SHOWN else []
    return "\n".join((*lines[:SITES_SHOWN], *more))
