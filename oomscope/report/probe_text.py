"""One probe for the terminal: a pure function of its result. What counts comes first: does it fit, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from oomscope.probe.result import PhaseBytes, ProbeResult, RankSummary, SiteBytes
from oomscope.report import words
from oomscope.report.rows import highest_phases, lines
from oomscope.report.sparkline import Sparkline
from oomscope.snapshot.verdict_types import FixTried, Gap, Verdict
from oomscope.units import format_size

STATUS_STYLES = {"fits": "bold green", "oom": "bold red", "error": "bold yellow"}
BAR_WIDTH = 24


def probe_report(result: ProbeResult, *, title: str = "") -> RenderableType:
    """Return the whole report of one rank's measurement."""
    return Group(*_parts(result, title))


def _parts(result: ProbeResult, title: str) -> Iterator[RenderableType]:
    heading = " · ".join(part for part in (title, words.rank_text(result), words.device_text(result)) if part)
    yield Text(heading, style="dim")
    yield Text(words.status_text(result), style=STATUS_STYLES[result.outcome])
    if result.verdict:
        yield from verdict_parts(result.verdict)
    if result.peak:
        yield Text()
        yield _facts(result)
        yield _section("Live at the peak, by category", category_table(result.peak.categories))
        if result.peak.sites:
            yield _section("Live at the peak, by line", site_table(result.peak.sites))
    if result.phases:
        yield _section("Peak of each phase", phase_table(result.phases))
    if result.verdict and result.verdict.fixes:
        yield _section("Allocator settings tried on the same allocations", fix_table(result.verdict.fixes))
    if len(result.ranks) > 1:
        yield _section("Ranks probed; the worst is reported above", rank_table(result.ranks))
    for note in result.notes:
        yield Text(f"note: {note}", style="dim")


def verdict_parts(verdict: Verdict) -> Iterator[RenderableType]:
    """Yield the verdict's sentence, where the missing bytes sit, and what to do."""
    if verdict.kind == "headroom" and not verdict.tags:
        yield Text(verdict.headline)
    else:
        yield Text("Verdict: ").append(words.kind_text(verdict), style="bold").append(f". {verdict.headline}")
    advice = words.advice_text(verdict)
    if advice:
        yield Text("What to do: ").append(advice, style="bold")
    if verdict.kind == "fragmentation" and verdict.gaps:
        yield _section("Where the bytes sit that nobody asked for", gap_table(verdict.gaps))


def _facts(result: ProbeResult) -> Table:
    peak = result.peak
    if peak is None:
        return _grid()
    grid = _grid()
    grid.add_row("Peak", f"{format_size(peak.requested_bytes)} live in {words.peak_place(peak)}")
    grid.add_row("Reserved", f"{format_size(peak.reserved_bytes)}, {words.overhead_text(peak)}")
    if result.demand_bytes:
        grid.add_row("Demand", f"{format_size(result.demand_bytes)} live at the peak of the same run without a limit")
    if result.num_alloc_retries:
        grid.add_row("Retries", f"the allocator emptied its cache {words.count(result.num_alloc_retries, 'time')}")
    if result.host_bytes or result.pinned_bytes:
        pinned, pageable = format_size(result.pinned_bytes), format_size(result.host_bytes)
        grid.add_row("Host", f"{pinned} pinned, {pageable} pageable")
    flops = words.flops_text(result)
    if flops:
        grid.add_row("Work", flops)
    if result.timeline:
        grid.add_row("Timeline", Sparkline(result.timeline, "cyan"))
    if result.truncated:
        grid.add_row("Recorded", Text("the ring of events wrapped: the beginning is missing", style="yellow"))
    return grid


def category_table(categories: dict[str, int]) -> Table:
    """Return the bytes of each category, largest first; they sum to the last row."""
    table = _table("Category", ">Bytes", ">Share", "")
    total = sum(categories.values())
    for name, size in sorted(categories.items(), key=lambda item: -item[1]):
        if size:
            table.add_row(name.replace("_", " "), format_size(size), words.percent(size, total), bar(size, total))
    table.add_section()
    table.add_row("all", format_size(total), words.percent(total, total), "")
    return table


def site_table(sites: tuple[SiteBytes, ...]) -> Table:
    """Return the lines of code that hold most bytes, and the rest as one row."""
    table = _table(">Bytes", ">Blocks", "Category", "Line", "Module")
    for line in lines(sites):
        place = words.site_text(line.site) if line.site else words.count(line.lines, "further line")
        table.add_row(format_size(line.bytes), f"{line.count:,}", line.category.replace("_", " "), place, line.module)
    return table


def phase_table(phases: tuple[PhaseBytes, ...]) -> Table:
    """Return the peak of each phase and the iteration in which it stood."""
    table = _table("Phase", ">Live", ">Reserved", "")
    rows = highest_phases(phases)
    top = max(row.requested_bytes for row in rows)
    for row in rows:
        live = format_size(row.requested_bytes)
        name = words.moment_text(row.iteration, row.phase)
        table.add_row(name, live, format_size(row.reserved_bytes), bar(row.requested_bytes, top))
    return table


def gap_table(gaps: tuple[Gap, ...]) -> Table:
    """Return the reserved bytes that serve nobody, by the reason why they could not serve the request."""
    table = _table(">Bytes", "Why they cannot serve the request")
    for gap in sorted(gaps, key=lambda row: -row.bytes):
        if gap.bytes:
            table.add_row(format_size(gap.bytes), gap.text or gap.reason.replace("_", " "))
    return table


def fix_table(fixes: tuple[FixTried, ...]) -> Table:
    """Return every setting that was replayed, with what came out."""
    table = _table("Setting", "Outcome", ">Peak reserved", ">Margin", ">Retries", "")
    for fix in fixes:
        outcome = Text(words.fix_outcome(fix), style="green" if fix.survives else "red")
        numbers = (format_size(fix.peak_reserved_bytes), format_size(fix.margin_bytes), f"{fix.retries:,}")
        table.add_row(fix.name, outcome, *numbers, fix.note)
    return table


def rank_table(ranks: tuple[RankSummary, ...]) -> Table:
    """Return every rank that was probed."""
    table = _table(">Rank", "Outcome", ">Live", ">Reserved", ">Margin", "")
    for row in ranks:
        outcome = Text(row.outcome, style=STATUS_STYLES[row.outcome])
        sizes = (format_size(size) for size in (row.requested_bytes, row.reserved_bytes, row.margin_bytes))
        table.add_row(str(row.rank), outcome, *sizes, row.message)
    return table


def bar(part: int, whole: int, width: int = BAR_WIDTH) -> str:
    """Return ``part`` of ``whole`` as a bar of at most ``width`` characters."""
    return "█" * round(width * part / whole) if whole > 0 and part > 0 else ""


def _section(title: str, body: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, style="bold"), body), (1, 0, 0, 0))


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    return grid


def _table(*headers: str) -> Table:
    """Return an empty table; a header that begins with ``>`` is a column of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for header in headers:
        name = header.removeprefix(">")
        table.add_column(name, justify="left" if name == header else "right", overflow="fold")
    return table
