"""A grid of configurations, every combination of the values of some keys, probed side by side.

A combination that the rules refuse, or that fails, is a row like any other; an interrupt keeps the rows that are
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from oomscope.config.key_lookup import SECTIONS, meant_key, meant_section
from oomscope.errors import UsageError
from oomscope.printable import quoted
from oomscope.probe.tuning.shorthand import SHORTHANDS
from oomscope.probe.tuning.variants import LoadWith, Probe, Variant, launched, measure_variant, side_by_side

SCHEMA_VERSION = 3
MOST_ROWS = 1000
"""Most rows: a larger grid is more likely a mistake than meant."""
DIGITS = 9
"""Decimals of a slowdown that count: the order of a sum changes the last ones, and equal times must stay equal."""


@dataclass(frozen=True)
class Axis:
    """What is varied, and its values as they were written."""

    name: str
    """A dotted key, or one of the short names of :mod:`oomscope.probe.tuning.shorthand`."""
    values: tuple[str, ...]

    @classmethod
    def parse(cls, word: str) -> Axis:
        """Return the axis that ``KEY=V1,V2,…`` names; commas inside brackets or quotes part nothing.

        Raises:
            UsageError: there is no equals sign, no value, a value twice, or no such key, short name or choice.
        """
        name, equals, text = word.partition("=")
        values = tuple(_split(text)) if equals else ()
        if not equals or not name:
            raise UsageError(f"{quoted(word)} has no values to vary", remedy="write KEY=VALUE,VALUE")
        _check_name(name)
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise UsageError(f"{name} has the value {quoted(twice)} twice", remedy="give each value once")
        axis = cls(name, values)
        for value in values:
            axis.overrides(value)
        return axis

    def overrides(self, value: str) -> tuple[str, ...]:
        """Return what ``value`` sets."""
        expand = SHORTHANDS.get(self.name)
        return (f"{self.name}={value}",) if expand is None else expand(value)


def _check_name(name: str) -> None:
    if name in SHORTHANDS:
        return
    section, dot, key = name.partition(".")
    if not dot:
        raise UsageError(f"{quoted(name)} is not a key", remedy=f"write section.key, or {' or '.join(SHORTHANDS)}")
    if section not in SECTIONS:
        raise UsageError(f"{quoted(name)} is not a key", remedy=meant_section(section))
    if key not in SECTIONS[section].model_fields:
        raise UsageError(f"{quoted(name)} is not a key", remedy=meant_key(section, key))


def _split(text: str) -> list[str]:
    """Cut ``text`` at the commas that stand outside brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += (character in "[{(") - (character in "]})") if not quote else 0
        if character == "," and depth <= 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination."""

    values: tuple[str, ...]
    """Values of the axes, in their order."""
    variant: Variant
    slowdown: float | None
    """Estimated time a sequence over that of the quickest combination that was estimated, minus one."""
    is_on_front: bool = False
    """Whether it fits, and no other that fits needs fewer requested bytes without more time, nor less time without more
    bytes."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A whole grid, in the order of its combinations: the last axis varies fastest."""

    axes: tuple[Axis, ...]
    rows: tuple[SweepRow, ...]
    available_bytes: int | None = None
    """Bytes of the card that a process may use; None where combinations differ in it, or nothing was measured."""
    interrupted: bool = False
    """Whether rows are missing because somebody ended the sweep: their outcome is ``interrupted``."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope sweep --json``."""
        return asdict(self)


def sweep(
    load: LoadWith,
    axes: Sequence[Axis],
    *,
    probe: Probe = launched,
    jobs: int = 1,
    announce: Callable[[int, int, tuple[str, ...], Variant], None] | None = None,
) -> Sweep:
    """Measure every combination of ``axes``.

    Each row is announced as it comes: how many there are, of how many, its values and what came of it.

    Raises:
        UsageError: two axes of one name, or too many combinations.
    """
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise UsageError(
            f"{next(n for n in names if names.count(n) > 1)} is varied twice", remedy="give all its values at once"
        )
    points = list(product(*(axis.values for axis in axes)))
    if len(points) > MOST_ROWS:
        raise UsageError(f"a grid of {len(points):,} combinations", remedy=f"vary less: at most {MOST_ROWS:,}")
    calls = [partial(measure_variant, load, overrides_of(axes, point), probe) for point in points]
    found: dict[int, Variant] = {}
    interrupted = False
    try:
        for number, variant in side_by_side(calls, jobs):
            found[number] = variant
            if announce is not None:
                announce(len(found), len(points), points[number], variant)
    except KeyboardInterrupt:
        interrupted = True
    cards = {variant.available_bytes for variant in found.values()} - {None}
    return Sweep(
        axes=tuple(axes),
        rows=tuple(with_front(_rows(axes, points, found))),
        available_bytes=cards.pop() if len(cards) == 1 else None,
        interrupted=interrupted,
    )


def with_front(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Return ``rows`` with the Pareto front marked: requested bytes against time, of those that fit.

    Of combinations that are alike in both, each is on the front or none.
    """
    costs = [_costs(row) for row in rows]
    known = {cost for cost in costs if cost is not None}
    front = {
        (live, time)
        for live, time in known
        if not any(other <= live and others <= time and (other, others) != (live, time) for other, others in known)
    }
    return [replace(row, is_on_front=cost in front) for row, cost in zip(rows, costs, strict=True)]


def _costs(row: SweepRow) -> tuple[int, float] | None:
    """Return the bytes and the time of a row that fits, if both are known."""
    live = row.variant.requested_bytes
    return None if not row.variant.fits or live is None or row.slowdown is None else (live, row.slowdown)


def overrides_of(axes: Sequence[Axis], values: Sequence[str]) -> tuple[str, ...]:
    """Return what one combination sets."""
    pairs = zip(axes, values, strict=True)
    return tuple(override for axis, value in pairs for override in axis.overrides(value))


def _rows(axes: Sequence[Axis], points: Sequence[tuple[str, ...]], found: dict[int, Variant]) -> list[SweepRow]:
    times = [variant.sequence_s for variant in found.values() if variant.sequence_s is not None]
    quickest = min(times, default=0.0)
    rows = []
    for number, point in enumerate(points):
        variant = found.get(number) or Variant(overrides=overrides_of(axes, point), outcome="interrupted")
        known = variant.sequence_s is not None and quickest > 0
        slowdown = round((variant.sequence_s or 0.0) / quickest - 1, DIGITS) if known else None
        rows.append(SweepRow(values=point, variant=variant, slowdown=slowdown))
    return rows
