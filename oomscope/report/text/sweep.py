"""A sweep for the terminal: one row a combination, with a bar of what is live at its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from oomscope.probe.tuning.sweep import Axis, Sweep, SweepRow
from oomscope.probe.tuning.variants import Variant
from oomscope.report import sentences
from oomscope.report.text.advise import outcome_text, variant_text
from oomscope.report.text.layout import bar, section, table


@dataclass(frozen=True)
class Line:
    """The combinations that differ in the last axis alone."""

    values: tuple[str, ...]
    """Of all other axes."""
    cells: tuple[SweepRow, ...]


def lines_of(sweep: Sweep) -> list[Line]:
    """Return the lines of the table."""
    width = len(sweep.axes[-1].values)
    starts = range(0, len(sweep.rows), width)
    return [Line(sweep.rows[start].values[:-1], sweep.rows[start : start + width]) for start in starts]


def short_names(sweep: Sweep) -> list[str]:
    """Return the names of the axes without their sections."""
    return [axis.name.rpartition(".")[2] for axis in sweep.axes]


def shares(rows: Sequence[SweepRow], value: Callable[[SweepRow], float | None]) -> dict[tuple[str, ...], float]:
    """Return for each combination where its value lies between the least, 0, and the most, 1; without a value, none.

    Where all are alike, all are 0.
    """
    known = {row.values: number for row in rows if (number := value(row)) is not None}
    low, high = min(known.values(), default=0), max(known.values(), default=0)
    return {values: (number - low) / (high - low) if high > low else 0.0 for values, number in known.items()}


def requested_bytes(row: SweepRow) -> int | None:
    """Return what of a combination the first table shows."""
    return row.variant.requested_bytes


def slowdown(row: SweepRow) -> float | None:
    """Return what of a combination the second table shows."""
    return row.slowdown


_STYLES = {"fits": "green", "oom": "red", "error": "yellow", "refused": "dim", "interrupted": "dim"}


_TIMES = """
Times are estimates, a sequence's over that of the quickest row, see docs/advise.md.
● no other combination needs less memory without more time, nor less time without more memory."""


def sweep_report(sweep: Sweep, *, title: str = "") -> RenderableType:
    """Return the whole report."""
    head = " · ".join(part for part in (title, tally_text(sweep)) if part)
    parts: list[RenderableType] = [Text(head, style="dim")]
    parts.append(grid_table(sweep))
    reasons = reason_table(sweep)
    if reasons.row_count:
        parts.append(section("Not measured, and why", reasons))
    idle = idle_table(sweep)
    if idle.row_count:
        parts.append(section("Measured, and without effect", idle))
    parts.append(Text(_TIMES, style="dim"))
    return Group(*parts)


def tally_text(sweep: Sweep) -> str:
    """Return how many combinations there are, and what came of them."""
    outcomes: list[str] = [row.variant.outcome for row in sweep.rows]
    told = [f"{outcomes.count(kind)} {kind}" for kind in _STYLES if outcomes.count(kind)]
    return " · ".join([sentences.count(len(outcomes), "combination"), *told])


def grid_table(sweep: Sweep) -> Table:
    """Return all combinations in their order."""
    rows = table(*short_names(sweep), "Outcome", ">Requested", ">Reserved", ">Margin", ">Host", ">Time", "Best", "?")
    most = max((row.variant.requested_bytes or 0 for row in sweep.rows), default=0)
    for row in sweep.rows:
        variant = row.variant
        sizes = (variant.requested_bytes, variant.reserved_bytes, variant.margin_bytes, variant.host_bytes or None)
        rows.add_row(
            *row.values,
            Text(outcome_text(variant), style=_STYLES[variant.outcome]),
            *(sentences.known_size(size) for size in sizes),
            sentences.slowdown_text(row.slowdown),
            "●" if row.is_on_front else "",
            bar(variant.requested_bytes or 0, most),
        )
    return rows


def reason_table(sweep: Sweep) -> Table:
    """Return the rows without a measurement, with what stood against it."""
    rows = table(*short_names(sweep), "Reason")
    for row in sweep.rows:
        if row.variant.outcome in {"refused", "error"}:
            rows.add_row(*row.values, row.variant.message)
    return rows


def idle_table(sweep: Sweep) -> Table:
    """Return the rows of which the rules say that something that they set does nothing."""
    rows = table(*short_names(sweep), "Warning")
    for row in sweep.rows:
        if row.variant.idle:
            rows.add_row(*row.values, row.variant.idle)
    return rows


def row_text(axes: Sequence[Axis], values: Sequence[str], variant: Variant) -> str:
    """Return the line of progress for one combination."""
    named = ", ".join(f"{axis.name}={value}" for axis, value in zip(axes, values, strict=True))
    return f"{named}: {variant_text(variant)}"
