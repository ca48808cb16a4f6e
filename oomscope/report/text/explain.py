"""An explained snapshot for the terminal. The answer comes first: what kind of failure, or what room is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.report import explain_sentences as words
from oomscope.report.rows import SHOWN, lines
from oomscope.report.sentences import (
    category_text,
    conf_variable,
    count,
    fix_outcome,
    known_size,
    one_line,
    percent,
    unread_text,
)
from oomscope.report.text.layout import BARS, Sparkline, bar, facts, section, table
from oomscope.report.text.probe import fix_table, verdict_parts
from oomscope.report.text.summary import explain_summary
from oomscope.snapshot.explain.composition import CategoryBytes, ModuleBytes
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.pins import PinnedSegment, PinningLine
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.explain.suspects import Suspect
from oomscope.snapshot.sites import SiteBytes
from oomscope.snapshot.verdict_types import FixTried
from oomscope.units import MiB, format_size

WORTH_SHOWING = MiB
"""Unused bytes below which what pins them is not shown."""
FEW = 5
"""Rows of what is only a second look at the same bytes."""


def report(found: Explanation | RankSet, *, top: int = SHOWN, full: bool = True) -> RenderableType:
    """Return the report of one file, or of a folder's ranks side by side and then of the worst.

    Args:
        found: what was found.
        top: lines of code to show; the rest is one row.
        full: every table of a file, not its first eight lines alone.
    """
    if isinstance(found, Explanation):
        return _file(found, top, full=full)
    return Group(*_rank_parts(found), _file(found.worst, top, full=full))


def _file(found: Explanation, top: int, *, full: bool) -> RenderableType:
    if not found.devices:
        return Text(f"{one_line(found.file)}: {words.NOTHING}")
    return Group(*_file_parts(found, top)) if full else explain_summary(found)


def _file_parts(explanation: Explanation, top: int) -> Iterator[RenderableType]:
    for device in explanation.devices:
        if device is not explanation.devices[0]:
            yield Text()
        yield from _parts(explanation, device, top)


def _rank_parts(found: RankSet) -> Iterator[RenderableType]:
    worst = found.rows[0]
    yield Text(f"{found.directory} · {count(len(found.rows), 'rank')}", style="dim")
    failed = sum(row.failed_bytes is not None for row in found.rows)
    yield Text(words.ranks_status_text(found), style="bold red" if failed else "bold green")
    yield section("Ranks, the worst first", rank_table(found.rows))
    for straggler in found.stragglers:
        yield Text(f"rank {straggler.rank} {straggler.text}", style="yellow")
    for each in found.unread:
        yield Text(f"{unread_text(each)}: its rank is left out", style="yellow")
    differing = words.differing_categories(found.rows)
    if differing:
        yield section("Where ranks differ, by category, each at its own peak", difference_table(found.rows, differing))
    yield Text()
    yield Text(f"The worst rank, {worst.rank}:", style="bold")


def rank_table(ranks: tuple[RankRow, ...]) -> Table:
    """Return one row a rank."""
    rows = table(">Rank", "Failed asking for", ">Requested", ">Reserved", ">Overhead", ">Iterations", ">Events", "File")
    for row in ranks:
        failed = "-" if row.failed_bytes is None else format_size(row.failed_bytes)
        sizes = (format_size(size) for size in (row.requested_bytes, row.reserved_bytes, row.overhead_bytes))
        iterations = f"{row.iterations:,}" if row.iterations else "-"
        rows.add_row(str(row.rank), failed, *sizes, iterations, f"{row.events:,}", one_line(PurePath(row.file).name))
    return rows


def difference_table(ranks: tuple[RankRow, ...], categories: list[str]) -> Table:
    """Return the requested bytes of some categories at each rank's own peak."""
    rows = table(">Rank", *(f">{category_text(name).capitalize()}" for name in categories))
    for row in ranks:
        rows.add_row(str(row.rank), *(format_size(row.categories.get(name, 0)) for name in categories))
    return rows


def _parts(explanation: Explanation, device: DeviceExplanation, top: int) -> Iterator[RenderableType]:
    yield Text(words.heading_text(explanation, device), style="dim")
    yield Text(words.status_text(device), style="bold green" if device.verdict.kind == "headroom" else "bold red")
    has_card = device.available_bytes is not None
    yield from verdict_parts(device.verdict, has_card=has_card, variable=conf_variable(device))
    if advice := words.advice_text(device):
        yield Text("What to do: ").append(advice, style="bold")
    yield Text()
    yield facts(_facts(device))
    parts = device.failure or device.composition
    when = words.when_text(device)
    if parts.bytes:
        yield section(f"Live {when}, by category", category_table(parts.categories))
        yield section(f"Live {when}, by line", site_table(parts.sites, top))
        kind = "file" if parts.modules_are_files else "module"
        if len(parts.modules) > 1:
            yield section(f"Live {when}, by {kind}", module_table(parts.modules, kind, min(top, FEW)))
    yield from _pins(device)
    if device.pending:
        yield section("Freed, but in use by a stream at the peak", pending_table(device))
    if device.pools:
        yield section("Private pools at the end", pool_table(device))
    if device.suspects:
        yield section("Lines whose live blocks grow from iteration to iteration", suspect_table(device.suspects))
    if device.verdict.tried:
        yield section(words.tried_title(device), _tried(device))
    for caveat in device.caveats:
        yield Text(f"note: {caveat}", style="dim")


def _facts(device: DeviceExplanation) -> Iterator[tuple[str, RenderableType]]:
    yield from words.facts(device)
    if len(device.curves.requested) > 1:
        yield "Timeline", _timeline(device.curves.requested)


def _timeline(live: Sequence[int]) -> RenderableType:
    """Return the shape of the timeline; in words where bars from zero would all be alike."""
    least, most = min(live), max(live)
    if least * len(BARS) < most * (len(BARS) - 1):
        return Sparkline(live, "cyan")
    return f"flat: every part of it reaches {format_size(least)} to {format_size(most)} requested"


def category_table(categories: tuple[CategoryBytes, ...]) -> Table:
    """Return the bytes of each category and how sure it is; they sum to the last row."""
    rows = table("Category", ">Bytes", ">Share", "Confidence", "")
    total = sum(row.bytes for row in categories)
    for row in categories:
        sure = "-" if row.confidence == "none" else row.confidence
        share = percent(row.bytes, total)
        rows.add_row(category_text(row.category), format_size(row.bytes), share, sure, bar(row.bytes, total))
    rows.add_section()
    rows.add_row("all", format_size(total), percent(total, total), "", "")
    return rows


def site_table(sites: tuple[SiteBytes, ...], top: int) -> Table:
    """Return the lines of code that hold most bytes, and the rest as one row."""
    rows = table(">Bytes", ">Blocks", "Category", "Line")
    for line in lines(sites, top):
        place = words.line_text(line.site) if line.site else count(line.lines, "further line")
        rows.add_row(format_size(line.bytes), f"{line.count:,}", category_text(line.category), place)
    return rows


def module_table(modules: tuple[ModuleBytes, ...], kind: str, top: int) -> Table:
    """Return the modules, or files, that hold most bytes, and the rest as one row."""
    rows = table(">Bytes", kind.capitalize())
    for row in modules[:top]:
        rows.add_row(format_size(row.bytes), row.module)
    if rest := modules[top:]:
        rows.add_row(format_size(sum(row.bytes for row in rest)), count(len(rest), f"further {kind}"))
    return rows


def _pins(device: DeviceExplanation) -> Iterator[RenderableType]:
    pins = device.pins
    if pins is None or pins.pinned_bytes < WORTH_SHOWING:
        return
    when, unused = words.when_text(device), format_size(pins.pinned_bytes)
    title = f"What pins {unused} of unused memory {when}, by the line that stays longest"
    yield section(title, pinning_table(pins.lines))
    emptiest = [segment for segment in pins.segments if 2 * segment.unused_bytes >= segment.total_bytes]
    if emptiest:
        yield section("The largest segments that are mostly empty", segment_table(emptiest))


def pinning_table(found: tuple[PinningLine, ...]) -> Table:
    """Return the lines that pin most, and the rest as one row."""
    rows = table(">Unused", ">Segments", ">Held there", "Category", "Line")
    for line in found[:SHOWN]:
        sizes = format_size(line.unused_bytes), f"{line.segments:,}", format_size(line.held_bytes)
        rows.add_row(*sizes, category_text(line.category), words.line_text(line.site))
    if rest := found[SHOWN:]:
        unused, segments = sum(line.unused_bytes for line in rest), sum(line.segments for line in rest)
        held = format_size(sum(line.held_bytes for line in rest))
        rows.add_row(format_size(unused), f"{segments:,}", held, "", count(len(rest), "further line"))
    return rows


def segment_table(segments: list[PinnedSegment], shown: int = FEW) -> Table:
    """Return the segments with most unused bytes and what lives in them."""
    rows = table(">Unused", ">Of", "Pool", "Held by")
    for segment in segments[:shown]:
        largest, *others = segment.pins
        held = f"{format_size(largest.bytes)} {category_text(largest.category)}, {words.line_text(largest.site)}"
        held += f", and {count(len(others), 'other line')}" if others else ""
        rows.add_row(format_size(segment.unused_bytes), format_size(segment.total_bytes), segment.segment_type, held)
    return rows


def pending_table(device: DeviceExplanation) -> Table:
    """Return the blocks that the program gave up and that another stream may still use."""
    rows = table(">Bytes", ">Blocks", "Stream", "Line")
    for row in device.pending[:SHOWN]:
        stream = "default" if row.stream == 0 else f"{row.stream:#x}"
        rows.add_row(format_size(row.bytes), f"{row.count:,}", stream, words.line_text(row.site))
    return rows


def pool_table(device: DeviceExplanation) -> Table:
    """Return the private pools."""
    rows = table("Pool", ">Segments", ">Reserved", ">In use")
    for pool in device.pools:
        sizes = format_size(pool.reserved_bytes), format_size(pool.active_bytes)
        rows.add_row(", ".join(map(str, pool.pool_id)), f"{pool.segments:,}", *sizes)
    return rows


def suspect_table(suspects: tuple[Suspect, ...]) -> Table:
    """Return the lines whose blocks of several iterations are alive side by side."""
    rows = table(">An iteration", ">Alive in all", ">Blocks", ">From iterations", "Line")
    for row in suspects[:SHOWN]:
        sizes = known_size(row.bytes_per_iteration), format_size(row.bytes)
        rows.add_row(*sizes, f"{row.count:,}", f"{row.iterations:,}", words.line_text(row.site))
    return rows


def _tried(device: DeviceExplanation) -> Table:
    if device.available_bytes is not None:
        return fix_table(device.verdict.tried, has_margin="fraction" not in device.verdict.tags)
    return reserved_table(device.verdict.tried, device.verdict.packing_lower_bound_bytes)


def reserved_table(fixes: tuple[FixTried, ...], requested_bytes: int) -> Table:
    """Return what each setting would reserve, where no card is known to compare with.

    What is reserved up to a failure is not compared with what was live and wanted there.
    """
    rows = table("Setting", "Outcome", ">Peak reserved", ">Above the live peak", "")
    for fix in fixes:
        over = format_size(fix.peak_reserved_bytes - requested_bytes) if fix.survives else ""
        outcome = Text(fix_outcome(fix), style="green" if fix.survives else "red")
        rows.add_row(fix.name, outcome, format_size(fix.peak_reserved_bytes), over, fix.note)
    return rows
