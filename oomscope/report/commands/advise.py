"""The report of ``advise``: the changes of a configuration that fit, cheapest first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from oomscope.probe.tuning.advise import Advice, Proposal
from oomscope.probe.tuning.variants import Variant
from oomscope.report import parts
from oomscope.report.commands.sweep import known_rank, outcome_cell, rank_columns, variant_text
from oomscope.report.parts import columns, line
from oomscope.report.sentences import count, slowdown_text
from oomscope.units import format_size

_SIZES: Final = ("size:Requested", "size:Saved", "size:Reserved", "size:Margin", "size:Host", "number:Time")


def advice_report(advice: Advice, *, title: str = "") -> Iterator[parts.Part]:
    """Yield the whole report of ``advise``."""
    yield line(" · ".join(part for part in (title, count(advice.probes, "probe")) if part), "soft")
    yield parts.status(_answer(advice), "good" if advice.solved else "bad")
    yield line(f"As it is: {variant_text(advice.now)}")
    yield proposal_table("What fits, cheapest first", advice.fitting)
    if advice.fitting:
        overrides = [shlex.join(proposal.variant.overrides) for proposal in advice.fitting]
        yield parts.Commands(title="To paste", commands=overrides)
    yield proposal_table("Tried, but not enough", advice.insufficient)
    yield parts.Table(
        title="Not applicable here",
        columns=columns("Change", "Why not"),
        rows=[(row.name, row.reason) for row in advice.refused],
    )
    if advice.fitting or advice.insufficient:
        yield parts.BLANK
        yield line("Times are estimates, see docs/advise.md; sizes were measured by a probe each.", "soft")


def _answer(advice: Advice) -> str:
    if advice.now.fits:
        return f"It fits as it is, which is tight: {_left(advice.now)}." if advice.now.is_tight else "It fits as it is."
    if advice.now.outcome == "error":
        return "It could not be measured."
    if not advice.fitting:
        return "Nothing that was tried fits."
    cheapest = advice.fitting[0]
    best = next((proposal for proposal in advice.fitting if proposal.variant.is_roomy), cheapest)
    text = f"It fits with {_named(best)} ({slowdown_text(best.slowdown)} time a step)"
    if cheapest.variant.is_roomy:
        return f"{text}."
    if best is cheapest:
        return f"{text}, which is tight: {_left(best.variant)}."
    return f"{text}; {_named(cheapest)} is cheaper, but tight: {_left(cheapest.variant)}."


def _named(proposal: Proposal) -> str:
    return " and ".join(proposal.names)


def _left(variant: Variant) -> str:
    return f"{format_size(variant.margin_bytes or 0)} to spare of {format_size(variant.available_bytes or 0)}"


def proposal_table(title: str, proposals: Sequence[Proposal]) -> parts.Table:
    """Return changes with what they save and cost."""
    rank = rank_columns([proposal.variant for proposal in proposals])
    return parts.Table(
        title=title,
        columns=columns("Change", "Outcome", *rank, *_SIZES),
        rows=[
            (
                " + ".join(proposal.names),
                outcome_cell(proposal.variant),
                *([known_rank(proposal.variant)] if rank else []),
                *(proposal.variant.requested_bytes, proposal.saved_bytes),
                *(proposal.variant.reserved_bytes, proposal.variant.margin_bytes, proposal.variant.host_bytes or None),
                slowdown_text(proposal.slowdown),
            )
            for proposal in proposals
        ],
    )
