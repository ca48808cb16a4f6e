"""Advice for the terminal: what fits, cheapest first, with the overrides to paste; then what was tried in vain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.probe.tuning.advise import Advice, Proposal, Refused
from oomscope.probe.tuning.variants import Variant
from oomscope.report import sentences
from oomscope.report.text.layout import ShellCommand, section, table
from oomscope.units import format_size


def advice_report(advice: Advice, *, title: str = "") -> RenderableType:
    """Return the whole report."""
    return Group(*_parts(advice, title))


def _parts(advice: Advice, title: str) -> Iterator[RenderableType]:
    yield Text(" · ".join(part for part in (title, sentences.count(advice.probes, "probe")) if part), style="dim")
    yield Text(_answer(advice), style="bold green" if advice.solved else "bold red")
    yield Text(f"As it is: {variant_text(advice.now)}")
    if advice.fitting:
        yield section("What fits, cheapest first", proposal_table(advice.fitting))
        yield Text("\nTo paste", style="bold")
        yield from (ShellCommand(_command(proposal)) for proposal in advice.fitting)
    if advice.insufficient:
        yield section("Tried, but not enough", proposal_table(advice.insufficient))
    if advice.refused:
        yield section("Not applicable here", refused_table(advice.refused))
    if advice.fitting or advice.insufficient:
        yield Text("\nTimes are estimates, see docs/advise.md; sizes were measured by a probe each.", style="dim")


def _answer(advice: Advice) -> str:
    if advice.now.fits:
        return "It fits as it is."
    if advice.now.outcome == "error":
        return "It could not be measured."
    if not advice.fitting:
        return "Nothing that was tried fits."
    best = advice.fitting[0]
    return f"It fits with {' and '.join(best.names)} ({sentences.slowdown_text(best.slowdown)} time a step)."


def outcome_text(variant: Variant) -> str:
    """Return what came of a variant in a word or two: after an OOM its verdict.

    Where the allocator failed over fragments, and later more is needed than there is, both are said.
    """
    if variant.outcome != "oom" or variant.verdict is None:
        return variant.outcome
    if variant.verdict == "fragmentation" and variant.margin_bytes is not None:
        return "fragmentation, then capacity"
    return variant.verdict


def variant_text(variant: Variant) -> str:
    """Return what came of one variant, in one line."""
    if variant.outcome in {"error", "refused"}:
        return variant.message
    if variant.outcome == "interrupted":
        return "not measured"
    live = sentences.known_size(variant.requested_bytes)
    if variant.fits:
        return f"fits, {live} requested, {sentences.known_size(variant.margin_bytes)} to spare"
    lacking = f", {format_size(-variant.margin_bytes)} too much" if variant.margin_bytes else ""
    return f"out of memory ({outcome_text(variant)}), {live} requested{lacking}"


def tried_text(name: str, variant: Variant) -> str:
    """Return the line of progress for one variant."""
    return f"{name}: {variant_text(variant)}"


def proposal_table(proposals: Sequence[Proposal]) -> Table:
    """Return changes with what they save and cost."""
    rows = table("Change", "Outcome", ">Requested", ">Saved", ">Reserved", ">Margin", ">Host", ">Time")
    for proposal in proposals:
        variant = proposal.variant
        outcome = Text(outcome_text(variant), style="green" if variant.fits else "red")
        sizes = (variant.requested_bytes, proposal.saved_bytes, variant.reserved_bytes, variant.margin_bytes)
        rows.add_row(
            " + ".join(proposal.names),
            outcome,
            *(sentences.known_size(size) for size in sizes),
            sentences.known_size(variant.host_bytes or None),
            sentences.slowdown_text(proposal.slowdown),
        )
    return rows


def refused_table(refused: Sequence[Refused]) -> Table:
    """Return the changes that the rules exclude, with their reasons."""
    rows = table("Change", "Why not")
    for row in refused:
        rows.add_row(row.name, row.reason)
    return rows


def _command(proposal: Proposal) -> str:
    return shlex.join(proposal.variant.overrides)
