"""The report of ``sweep``: the combinations of a grid, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as iterate
from typing import Final

from oomscope.probe.tuning.sweep import Axis, Sweep
from oomscope.probe.tuning.variants import Variant
from oomscope.report import parts
from oomscope.report.parts import bar, columns, line
from oomscope.report.sentences import count, known_size, slowdown_text
from oomscope.units import format_size

_SIZES: Final = ("size:Requested", "size:Reserved", "size:Margin", "size:Host", "number:Time")
_TONES: Final = {"fits": "good", "oom": "bad", "error": "warn", "refused": "soft", "interrupted": "soft"}
_FRONT: Final = "● no other combination needs less memory without more time, nor less time without more memory."
_TIMES: Final = "Times are estimates, a sequence's over that of the quickest row, see docs/advise.md."


def outcome_text(variant: Variant) -> str:
    """Return the outcome of a variant in a word or two: after an OOM its verdict.

    Where the allocator failed over fragments, and later more is needed than there is, both are said.
    """
    if variant.outcome != "oom" or variant.verdict is None:
        return variant.outcome
    if variant.verdict == "fragmentation" and variant.margin_bytes is not None:
        return "fragmentation, then capacity"
    return variant.verdict


def variant_text(variant: Variant) -> str:
    """Return the outcome of one variant, in one line."""
    if variant.outcome in {"error", "refused"}:
        return variant.message
    if variant.outcome == "interrupted":
        return "not measured"
    live = known_size(variant.requested_bytes)
    rank = f" (rank {variant.rank})" if variant.stages > 1 else ""
    if variant.fits:
        return f"fits, {live} requested, {known_size(variant.margin_bytes)} to spare{rank}"
    lacking = f", {format_size(-variant.margin_bytes)} too much" if variant.margin_bytes else ""
    return f"out of memory ({outcome_text(variant)}), {live} requested{lacking}{rank}"


def outcome_cell(variant: Variant) -> parts.Cell:
    """Return :func:`outcome_text` in its colour."""
    return parts.Cell(text=outcome_text(variant), tone=_TONES[variant.outcome])


def rank_columns(variants: Sequence[Variant]) -> list[str]:
    """Return the heading of the deciding rank, where some of ``variants`` have ranks that differ."""
    return ["Rank"] if any(variant.stages > 1 for variant in variants) else []


def known_rank(variant: Variant) -> str:
    """Return the deciding rank for a table; a dash where nothing was measured."""
    return "-" if variant.rank is None else str(variant.rank)


def short_names(sweep: Sweep) -> list[str]:
    """Return the names of the axes without their sections."""
    return [axis.name.rpartition(".")[2] for axis in sweep.axes]


def front_numbers(sweep: Sweep) -> list[str]:
    """Return a number for each combination that is among the best, by which table and chart name it; else nothing."""
    best = iterate(1)
    return [str(next(best)) if row.is_on_front else "" for row in sweep.rows]


def tally_text(sweep: Sweep) -> str:
    """Return how many combinations there are, and their outcomes."""
    outcomes: list[str] = [row.variant.outcome for row in sweep.rows]
    told = [f"{outcomes.count(kind)} {kind}" for kind in _TONES if outcomes.count(kind)]
    return " · ".join([count(len(outcomes), "combination"), *told])


def sweep_report(sweep: Sweep, *, title: str = "", figures: Sequence[parts.Figure] = ()) -> list[parts.Part]:
    """Return the whole report of ``sweep``, with charts for a page."""
    names = short_names(sweep)
    return [
        line(" · ".join(part for part in (title, tally_text(sweep)) if part), "soft"),
        *([parts.status("It was interrupted: rows are missing.", "warn")] if sweep.interrupted else []),
        *figures,
        _grid_table(sweep),
        parts.Table(
            title="Not measured, and why",
            columns=columns(*names, "Reason"),
            rows=[
                (*row.values, row.variant.message) for row in sweep.rows if row.variant.outcome in {"refused", "error"}
            ],
        ),
        parts.Table(
            title="Measured, with a warning",
            columns=columns(*names, "Warning"),
            rows=[(*row.values, row.variant.idle) for row in sweep.rows if row.variant.idle],
        ),
        parts.BLANK,
        line(_TIMES, "soft"),
        line(_FRONT, "soft"),
    ]


def _grid_table(sweep: Sweep) -> parts.Table:
    most = max((row.variant.requested_bytes or 0 for row in sweep.rows), default=0)
    rank = rank_columns([row.variant for row in sweep.rows])
    return parts.Table(
        columns=columns(*short_names(sweep), "Outcome", *rank, *_SIZES, "Best", "bar:"),
        name="combinations",
        rows=[
            (
                *row.values,
                outcome_cell(row.variant),
                *([known_rank(row.variant)] if rank else []),
                *(row.variant.requested_bytes, row.variant.reserved_bytes, row.variant.margin_bytes),
                row.variant.host_bytes or None,
                parts.Cell(text=slowdown_text(row.slowdown), number=-1 if row.slowdown is None else row.slowdown),
                f"● {best}" if best else "",
                bar(row.variant.requested_bytes or 0, most, "accent" if row.variant.fits else "bad"),
            )
            for row, best in zip(sweep.rows, front_numbers(sweep), strict=True)
        ],
        hint="Sizes are the most of any rank that was probed. After a failure, requested is what the same run needs "
        "without a limit.",
    )


def row_text(axes: Sequence[Axis], values: Sequence[str], variant: Variant) -> str:
    """Return the line of progress for one combination."""
    named = ", ".join(f"{axis.name}={value}" for axis, value in zip(axes, values, strict=True))
    return f"{named}: {variant_text(variant)}"
