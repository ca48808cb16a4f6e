"""The waterfall of a search for steps: each step's bytes from good to bad, and where the search did not look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.result import BisectResult, StepRow
from oomscope.bisect.results.sections import Stretch, Waterfall, levels
from oomscope.report import bisect_sentences
from oomscope.report.sentences import count, known_size
from oomscope.report.step_sets import StepSet, step_sets
from oomscope.report.text.layout import section, table
from oomscope.units import format_size

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


def stretch_table(stretches: Sequence[Stretch], shown: int = STRETCHES_SHOWN) -> Table:
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


def _between(stretches: Sequence[Stretch]) -> int:
    return sum(stretch.commits - 1 for stretch in stretches)
