"""The first eight lines of a report: does it fit, why not, where the peak is, who holds it, and what to do.

They are what most readers need. ``--full`` prints every table below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.probe.result import ProbeResult
from oomscope.report import explain_sentences, sentences
from oomscope.report.rows import Line, lines
from oomscope.report.text.layout import facts, section
from oomscope.report.text.probe import STATUS_STYLES, rank_table
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.sites import SiteBytes
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import format_size

HOLDERS = 3
"""Lines of the user's code that are named."""


def probe_summary(result: ProbeResult, *, title: str = "") -> RenderableType:
    """Return what a probe answers, in at most eight lines, and the notes that limit the answer."""
    card = " ".join(part for part in (result.backend, result.gpu) if part)
    room = f"{format_size(result.available_bytes)} for this process" if result.available_bytes else ""
    rank = sentences.rank_text(result) if result.world_size > 1 else ""
    rows: list[RenderableType] = [
        Text(" · ".join(part for part in (title, rank, card, room) if part), style="dim"),
        Text(sentences.status_text(result), style=STATUS_STYLES[result.outcome]),
    ]
    named = [*_verdict(result.verdict), *_peak(result)]
    if result.peak:
        named.extend(_holders(result.peak.sites, "peak" if result.outcome == "fits" else "failure"))
    if advice := sentences.result_advice(result):
        named.append(("What to do", Text(advice, style="bold")))
    if named:
        rows.append(facts(named))
    if len(result.ranks) > 1:
        rows.append(section("All ranks", rank_table(result.ranks)))
    return Group(*rows, *(Text(f"note: {note}", style="dim") for note in result.notes))


def explain_summary(found: Explanation) -> RenderableType:
    """Return what a snapshot shows of each device, in at most eight lines a device, and the notes on it."""
    parts: list[RenderableType] = []
    for device in found.devices:
        parts.extend([Text()] if parts else [])
        parts.extend(_device(found, device))
    return Group(*parts)


def _device(found: Explanation, device: DeviceExplanation) -> Iterator[RenderableType]:
    is_fine = device.verdict.kind == "headroom"
    yield Text(explain_sentences.heading_text(found, device), style="dim")
    yield Text(explain_sentences.status_text(device), style=STATUS_STYLES["fits" if is_fine else "oom"])
    named: list[tuple[str, RenderableType]] = list(_verdict(device.verdict))
    if device.served:
        named.append(("Verdict", device.verdict.headline))
    named.append(("Peak", explain_sentences.peak_text(device)))
    parts = device.failure or device.composition
    when = "failure" if device.failure else "end" if device.shows_end_only else "peak"
    named.extend(_holders(parts.sites, when))
    advice = (
        sentences.advice_text(
            device.verdict, has_card=device.available_bytes is not None, variable=sentences.conf_variable(device)
        ),
        explain_sentences.advice_text(device),
    )
    if text := "; ".join(filter(None, advice)):
        named.append(("What to do", Text(text, style="bold")))
    yield facts(named)
    for caveat in device.caveats:
        yield Text(f"note: {caveat}", style="dim")


def _verdict(verdict: Verdict | None) -> Iterator[tuple[str, RenderableType]]:
    """Yield the verdict's row; none where nothing failed and nothing grows."""
    if verdict and (verdict.kind != "headroom" or verdict.tags):
        yield "Verdict", Text(sentences.kind_text(verdict), style="bold").append(f". {verdict.headline}")


def _peak(result: ProbeResult) -> Iterator[tuple[str, RenderableType]]:
    """Yield the row of the peak; after a failure that of the whole run without a limit, where it was run."""
    if demand := sentences.demand_text(result):
        yield "Needs", demand
    elif result.peak:
        before = " before the failure" if result.outcome == "oom" else ""
        requested = f"{format_size(result.peak.requested_bytes)} requested{before}"
        held = result.reserved_peak
        reserved = f"; {format_size(held.reserved_bytes)} reserved at most" if held else ""
        yield "Peak", f"{requested} in {sentences.peak_place(result.peak)}{reserved}"


def _holders(sites: Iterable[SiteBytes], when: str) -> Iterator[tuple[str, RenderableType]]:
    """Yield the row of the lines of code that hold most at the moment that ``when`` names."""
    largest = [line for line in lines(sites, HOLDERS) if line.site][:HOLDERS]
    if largest:
        yield f"Held at {when}", _table(largest)


def _table(largest: list[Line]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in largest:
        place = sentences.site_text(line.site) + (f" in {line.module}" if line.module else "")
        grid.add_row(format_size(line.bytes), sentences.category_text(line.category), place)
    return grid
