"""A sweep laid out as a table: the values of its last axis side by side, all other combinations below each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oomscope.probe.tuning.sweep import Sweep, SweepRow


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
