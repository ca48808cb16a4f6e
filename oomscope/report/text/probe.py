"""One probe for the terminal: a pure function of its result. What counts comes first: does it fit, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.probe.result import Peak, PhaseBytes, ProbeResult, RankSummary, SiteBytes
from oomscope.report import sentences
from oomscope.report.rows import highest_phases, lines
from oomscope.report.text.layout import Sparkline, bar, facts, section, table
from oomscope.snapshot.verdict_types import FixTried, Gap, Verdict
from oomscope.units import format_size

STATUS_STYLES = {"fits": "bold green", "oom": "bold red", "error": "bold yellow"}


def probe_report(result: ProbeResult, *, title: str = "") -> RenderableType:
    """Return the whole report of one rank's measurement."""
    return Group(*_parts(result, title))


def _parts(result: ProbeResult, title: str) -> Iterator[RenderableType]:
    heading = " · ".join(part for part in (title, sentences.rank_text(result), sentences.device_text(result)) if part)
    yield Text(heading, style="dim")
    yield Text(sentences.status_text(result), style=STATUS_STYLES[result.outcome])
    if advice := sentences.missing_module_advice(result):
        yield Text("What to do: ").append(advice, style="bold")
    if result.verdict:
        yield from verdict_parts(result.verdict, has_card=result.available_bytes is not None)
    if result.peak:
        yield Text()
        yield facts(_facts(result, result.peak))
        at_peak = "Requested at the peak" if result.outcome == "fits" else "Requested at the peak before the failure"
        yield section(f"{at_peak}, by category", category_table(result.peak.categories))
        if result.peak.sites:
            yield section(f"{at_peak}, by line", site_table(result.peak.sites))
    if result.phases:
        title = "Peak of each phase: most requested, where it says, and most reserved in any iteration"
        yield section(title, phase_table(result.phases))
    if result.verdict and result.verdict.tried:
        tried = fix_table(result.verdict.tried, has_margin=result.available_bytes is not None)
        yield section(sentences.tried_title(result.verdict), tried)
        if untried := sentences.untried_text(result.verdict):
            yield Text(untried, style="dim")
    if len(result.ranks) > 1:
        yield section("All ranks", rank_table(result.ranks))
    for note in result.notes:
        yield Text(f"note: {note}", style="dim")


def verdict_parts(
    verdict: Verdict, *, has_card: bool = True, variable: str = "PYTORCH_ALLOC_CONF"
) -> Iterator[RenderableType]:
    """Yield the verdict's sentence, where the missing bytes sit, and what to do; see :func:`words.advice_text`."""
    if verdict.kind == "headroom" and not verdict.tags:
        yield Text(verdict.headline)
    else:
        yield Text("Verdict: ").append(sentences.kind_text(verdict), style="bold").append(f". {verdict.headline}")
    advice = sentences.advice_text(verdict, has_card=has_card, variable=variable)
    if advice:
        yield Text("What to do: ").append(advice, style="bold")
    if verdict.kind == "fragmentation" and verdict.gaps:
        yield section("Free but unusable memory", gap_table(verdict.gaps))


def _facts(result: ProbeResult, peak: Peak) -> Iterator[tuple[str, RenderableType]]:
    yield "Peak", f"{format_size(peak.requested_bytes)} requested in {sentences.peak_place(peak)}"
    if reserved := sentences.reserved_text(result):
        yield "Reserved", reserved
    if demand := sentences.demand_text(result):
        yield "Demand", demand
    if retries := sentences.retries_text(result):
        yield "Retries", retries
    if result.allocator_conf is not None or result.backend != "command":
        yield "Allocator", sentences.allocator_text(result)
    if result.host_bytes or result.pinned_bytes:
        pinned, pageable = format_size(result.pinned_bytes or 0), format_size(result.host_bytes or 0)
        yield "Host", f"{pinned} pinned, {pageable} pageable"
    flops = sentences.flops_text(result)
    if flops:
        yield "Work", flops
    if cost := sentences.cost_text(result):
        yield "Cost", cost
    if result.timeline:
        yield "Timeline", Sparkline(result.timeline, "cyan")
    if result.truncated:
        yield "Recorded", Text("the ring of events wrapped: the beginning is missing", style="yellow")


def category_table(categories: dict[str, int]) -> Table:
    """Return the bytes of each category, largest first; they sum to the last row."""
    rows = table("Category", ">Bytes", ">Share", "?")
    total = sum(categories.values())
    for name, size in sorted(categories.items(), key=lambda item: -item[1]):
        if size:
            rows.add_row(name.replace("_", " "), format_size(size), sentences.percent(size, total), bar(size, total))
    rows.add_section()
    rows.add_row("all", format_size(total), sentences.percent(total, total), "")
    return rows


def site_table(sites: tuple[SiteBytes, ...]) -> Table:
    """Return the lines of code that hold most bytes, and the rest as one row."""
    rows = table(">Bytes", ">Blocks", "Category", "Line", "Module")
    for line in lines(sites):
        place = sentences.site_text(line.site) if line.site else sentences.count(line.lines, "further line")
        rows.add_row(format_size(line.bytes), f"{line.count:,}", line.category.replace("_", " "), place, line.module)
    return rows


def phase_table(phases: tuple[PhaseBytes, ...]) -> Table:
    """Return the live peak of each phase with the iteration in which it stood, and its reserved peak over all."""
    rows = table("Phase", ">Requested", ">Reserved", "?")
    highest = highest_phases(phases)
    top = max(row.requested_bytes for row in highest)
    for row in highest:
        live = format_size(row.requested_bytes)
        name = sentences.moment_text(row.iteration, row.phase)
        rows.add_row(name, live, format_size(row.reserved_bytes), bar(row.requested_bytes, top))
    return rows


def gap_table(gaps: tuple[Gap, ...]) -> Table:
    """Return the reserved bytes that serve nobody, by the reason why they could not serve the request."""
    rows = table(">Bytes", "Why they cannot serve the request")
    for gap in sorted(gaps, key=lambda row: -row.bytes):
        if gap.bytes:
            rows.add_row(format_size(gap.bytes), gap.text or gap.reason.replace("_", " "))
    return rows


def fix_table(fixes: tuple[FixTried, ...], *, has_margin: bool = True) -> Table:
    """Return every setting that was tried, with what came out; ``has_margin``: D is more than an upper bound."""
    margin = [">Margin"] if has_margin else []
    how = ["By"] if any(fix.how == "run" for fix in fixes) else []
    rows = table("Setting", *how, "Outcome", ">Peak reserved", *margin, ">Retries", "")
    for fix in fixes:
        outcome = Text(sentences.fix_outcome(fix), style="green" if fix.survives else "red")
        margin = [format_size(fix.margin_bytes)] if has_margin else []
        numbers = (format_size(fix.peak_reserved_bytes), *margin, f"{fix.retries:,}")
        rows.add_row(fix.name, *([sentences.HOW_TEXTS[fix.how]] if how else []), outcome, *numbers, fix.note)
    return rows


def rank_table(ranks: tuple[RankSummary, ...]) -> Table:
    """Return every rank that was probed."""
    rows = table(">Rank", "Outcome", ">Requested", ">Reserved", ">Margin", "")
    for row in ranks:
        outcome = Text(row.outcome, style=STATUS_STYLES[row.outcome])
        sizes = (sentences.known_size(size) for size in (row.requested_bytes, row.reserved_bytes, row.margin_bytes))
        rows.add_row(str(row.rank), outcome, *sizes, row.message)
    return rows
