"""What inside the commit is at fault, for the terminal: its hunks with their bytes and the lines that they wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.noise import Posterior, percent
from oomscope.bisect.results.result import BisectResult, StepRow
from oomscope.bisect.results.sections import (
    CodeVsConfig,
    Corner,
    HunkChange,
    Narrowed,
    UnseenStretch,
    Waterfall,
    levels,
)
from oomscope.bisect.search.measured import Bytes
from oomscope.report import bisect_sentences, sentences
from oomscope.report.rows import StepSet, step_sets
from oomscope.report.sentences import count, known_size
from oomscope.report.text.layout import bar, section, table
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


def square_sections(result: BisectResult) -> Iterator[RenderableType]:
    """Yield the corners where both axes were walked, and the configuration's part beside the commit's."""
    if result.square is None:
        return
    yield section("Code and configuration", corner_table(result.square))
    if result.also is not None:
        keys = table("Key", "Good", "Bad", "By itself")
        for change in result.also.keys:
            keys.add_row(change.key, str(change.good), str(change.bad), bisect_sentences.delta_text(change.delta))
        yield section(f"Keys of {result.square.path} that contribute", keys)


def corner_table(square: CodeVsConfig) -> Table:
    """Return a row for each corner, and what code and configuration bring only together."""
    rows = table("Code", "Configuration", "", ">Requested", ">Reserved", "Why")
    for corner in (square.old_old, square.new_old, square.old_new, square.new_new):
        rows.add_row(
            bisect_sentences.short_hash(corner.code),
            bisect_sentences.short_hash(corner.config),
            corner.answer.value,
            *_corner_sizes(corner),
            corner.reason,
        )
    if square.interaction is not None:
        rows.add_section()
        sizes = (square.interaction.requested_bytes, square.interaction.reserved_bytes)
        rows.add_row("only together", "", "", *(known_size(size, signed=True) for size in sizes), "")
    return rows


def _corner_sizes(corner: Corner) -> tuple[str, str]:
    if corner.bytes is None:
        return "", ""
    return format_size(corner.bytes.requested_bytes), known_size(corner.bytes.reserved_bytes)


STRETCHES_SHOWN = 8
_WIDTH = 16
_SHORTENED = 60


def waterfall_parts(result: BisectResult, found: Waterfall) -> Iterator[RenderableType]:
    """Return the table of steps and, where commits were left out, that of the stretches not looked into."""
    yield section("Steps; they sum to the difference of the ends", waterfall_table(result.steps, found))
    if sets := list(step_sets(result)):
        yield section("Cannot be told apart: each of these steps came with one of several commits", set_table(sets))
    if not found.is_complete:
        yield Text("The deadline passed before every range whose ends differ was split.", style="yellow")
    if hiding := [stretch for stretch in found.unseen if stretch.commits > 1]:
        yield section(
            "Not looked into, for the ends are equal or differ too little: a step and its revert would not be seen",
            stretch_table(hiding),
        )
        yield Text(f"  --exhaustive probes the {count(_between(hiding), 'commit')} there", style="dim")


def waterfall_table(steps: Sequence[StepRow], found: Waterfall) -> Table:
    """Return a row for the good end, one for each step, and one for the bad end with the sums."""
    rows = table(">Requested", ">Overhead", ">Reserved", "?", "Came with", "Mostly")
    reached = [found.start, *levels(found.start, (step.delta for step in steps))]
    drawn = [level.requested_bytes if level.reserved_bytes is None else level.reserved_bytes for level in reached]
    rows.add_row("", "", known_size(found.start.reserved_bytes), "", "good end", "")
    for step, level, (before, after) in zip(steps, reached[1:], pairwise(drawn), strict=True):
        sizes = (known_size(size, signed=True) for size in (step.delta.requested_bytes, step.delta.overhead_bytes))
        piece = floating_bar(before, after, min(drawn), max(drawn))
        name = bisect_sentences.shortened(bisect_sentences.step_text(step), _SHORTENED) if step.commit else step.label
        rows.add_row(*sizes, known_size(level.reserved_bytes), piece, name, dominant_text(step.dominant))
    rows.add_section()
    change = found.end - found.start
    sums = (known_size(size, signed=True) for size in (change.requested_bytes, change.overhead_bytes))
    rows.add_row(*sums, known_size(found.end.reserved_bytes), "", "bad end, and the sum", "")
    return rows


def set_table(sets: Sequence[StepSet]) -> Table:
    """Return the steps that stand for several commits, and why they were not split."""
    rows = table(">Requested", ">Overhead", ">Commits", "After", "Up to", "Why")
    for step, reason in sets:
        sizes = (known_size(size, signed=True) for size in (step.delta.requested_bytes, step.delta.overhead_bytes))
        names = (bisect_sentences.short_hash(name or "") for name in (step.since, step.commit))
        rows.add_row(*sizes, f"{step.commits:,}", *names, reason)
    return rows


def stretch_table(stretches: Sequence[UnseenStretch], shown: int = STRETCHES_SHOWN) -> Table:
    """Return the longest of the stretches, and how many more there are."""
    rows = table(">Commits", "After", "Up to")
    ordered = sorted(stretches, key=lambda stretch: -stretch.commits)
    for stretch in ordered[:shown]:
        names = (bisect_sentences.short_hash(name) for name in (stretch.since, stretch.until))
        rows.add_row(f"{stretch.commits - 1:,}", *names)
    if rest := ordered[shown:]:
        rows.add_row(f"{_between(rest):,}", f"in {count(len(rest), 'further stretch', 'further stretches')}", "")
    return rows


def floating_bar(before: int, after: int, lowest: int, highest: int, width: int = _WIDTH) -> str:
    """Return a step between two levels as a bar of ``width`` cells that ``lowest`` to ``highest`` fill.

    A step up is solid, one down is light; one that is too small for a cell has one all the same.
    """
    if before == after:
        return ""
    low, high = (round(width * (level - lowest) / (highest - lowest)) for level in sorted((before, after)))
    low = min(low, width - 1)
    return " " * low + ("█" if after > before else "░") * max(1, high - low)


def dominant_text(growth: SiteGrowth | None) -> str:
    """Return the line that changed most, with its bytes and category; empty where there is none."""
    if growth is None:
        return ""
    size = format_size(growth.delta_bytes, signed=True)
    if growth.site is None:
        return f"{size} {growth.category}"
    place = f"{growth.site.file.rsplit('/', 1)[-1]}:{growth.site.line}" if growth.site.file else growth.site.function
    return f"{size} {growth.category.replace('_', ' ')}, {place}"


def _between(stretches: Sequence[UnseenStretch]) -> int:
    return sum(stretch.commits - 1 for stretch in stretches)


SHOWN = 5
BOUND = "The probabilities hold where at most every fifth probe is wrong"
_LEAST = 0.001
_CHANCE_WIDTH = 60


def posterior_sections(result: BisectResult) -> Iterator[RenderableType]:
    """Return the table of the likeliest candidates; nothing for a search without noise."""
    found = result.posterior
    if found is None:
        return
    subjects = {place.commit: place.subject for line in result.lines for place in line.places}
    rows = table(">Probability", "?", "The first bad commit is")
    for name, probability in likeliest(found):
        text = f"{bisect_sentences.short_hash(name)} {subjects.get(name, '')}".rstrip()
        rows.add_row(*_cells(probability), bisect_sentences.shortened(text, _CHANCE_WIDTH))
    if found.none >= _LEAST:
        rows.add_row(*_cells(found.none), "none: the bad end is good")
    if found.already >= _LEAST:
        rows.add_row(*_cells(found.already), "the good end, or one before it")
    yield section(f"Probability of each candidate ({percent(found.wanted)} required)", rows)
    yield Text(f"  {BOUND}", style="dim")


def likeliest(found: Posterior, shown: int = SHOWN) -> list[tuple[str, float]]:
    """Return the likeliest candidates, the first one first."""
    rows = sorted(found.rows, key=lambda row: -row[1])[:shown]
    return [row for row in rows if row[1] >= _LEAST]


def _cells(probability: float) -> tuple[str, str]:
    return percent(probability), bar(round(1000 * probability), 1000)
