"""Bands from what a machine really does: a case is measured several times, and its spread becomes its bands.

What differs by no more than the spread is told by nobody: the warn band is the spread, and the fail band twice that,
or the metric's default where that is wider: no number of lucky repeats says that a segment never moves.

The spread is that of few repeats, and what was accepted is itself one draw. How often normal noise alone is told, and
how often it fails twice in a row, is in docs/design/gate.md by the number of repeats; below five it fails too often.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oomscope.errors import MachineUnfitError, OomscopeError, TargetError
from oomscope.gate.baseline import Entry, Key
from oomscope.gate.night.cases import Probe, plan_of
from oomscope.gate.night.compare import REPORT_IT
from oomscope.gate.suite.bands import Band, Bands
from oomscope.gate.suite.metrics import METRICS, values_of
from oomscope.gate.suite.suite import Case
from oomscope.probe.external_oom import is_of_the_machine
from oomscope.probe.result import ProbeResult

SCHEMA_VERSION = 2
FAIL_SPREADS = 2
_ALONE = "keep the machine to itself while it is calibrated"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What one metric did over the repeats."""

    least: int
    most: int

    @property
    def size(self) -> int:
        """Most less least."""
        return self.most - self.least

    def bands(self, metric: str) -> Bands:
        """Return the bands of ``metric`` that follow, which are never narrower than its default ones."""
        default = METRICS[metric].bands
        return Bands(
            warn=Band(absolute=self.size).at_least(default.warn),
            fail=Band(absolute=FAIL_SPREADS * self.size).at_least(default.fail),
        )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A case that was measured several times."""

    name: str
    key: Key
    repeats: int
    outcome: str
    spreads: Mapping[str, Spread]
    """By metric."""

    def entry(self, before: Entry) -> Entry:
        """Return the baseline's entry with these bands; what is expected stays as it was accepted."""
        bands = {name: spread.bands(name) for name, spread in self.spreads.items() if name in before.values}
        return replace(before, bands=bands)

    def outside(self, before: Entry) -> list[str]:
        """Return the metrics whose accepted value is none that the repeats could have measured."""
        known = ((name, spread) for name, spread in self.spreads.items() if name in before.values)
        return [name for name, spread in known if not spread.least <= before.values[name] <= spread.most]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        metrics = {}
        for name, spread in self.spreads.items():
            bands = spread.bands(name)
            sizes = {"least": spread.least, "most": spread.most, "spread": spread.size}
            metrics[name] = {**sizes, "warn": bands.warn.to_text(), "fail": bands.fail.to_text()}
        return {"name": self.name, "repeats": self.repeats, "outcome": self.outcome, "metrics": metrics}


def calibrate(
    case: Case, probe: Probe, repeats: int, announce: Callable[[int], None], stop: threading.Event
) -> Calibration:
    """Measure ``case`` ``repeats`` times and return its spread.

    Raises:
        OomscopeError: it cannot be measured as it is asked for, or a repeat met a defect.
        MachineUnfitError: a repeat ran out of what the rest of the machine had left.
        TargetError: a repeat failed, or ended otherwise than the first; a spread over both would mean nothing.
    """
    plan = plan_of(case)
    results: list[ProbeResult] = []
    for number in range(repeats):
        results.append(plan.measure(probe, stop))
        _refuse(case, results)
        announce(number + 1)
    return Calibration(
        name=case.name,
        key=Key.of(case.digest, results[0]),
        repeats=repeats,
        outcome=results[0].outcome,
        spreads=_spreads([values_of(result) for result in results]),
    )


def _refuse(case: Case, results: Sequence[ProbeResult]) -> None:
    first, last = results[0], results[-1]
    if last.outcome == "error":
        said = last.failure.message if last.failure else "it did not say why"
        if last.failure and last.failure.kind == "internal":
            raise OomscopeError(f"{case.name!r} met a defect: {said}", where=case.where, remedy=REPORT_IT)
        raise TargetError(f"{case.name!r} failed: {said}", where=case.where, remedy="repair it first")
    if last.verdict is not None and is_of_the_machine(last):
        raise MachineUnfitError(
            f"{case.name!r} ran out of memory on repeat {len(results)}: {last.verdict.headline}",
            where=case.where,
            remedy=_ALONE,
        )
    if last.outcome != first.outcome or Key.of(case.digest, last) != Key.of(case.digest, first):
        raise TargetError(
            f"{case.name!r} ended differently on repeat {len(results)} than on the first",
            where=case.where,
            remedy=_ALONE,
        )


def _spreads(values: Sequence[Mapping[str, int]]) -> dict[str, Spread]:
    """Return the spread of every metric that all repeats tell."""
    names = [name for name in METRICS if all(name in each for each in values)]
    return {
        name: Spread(least=min(each[name] for each in values), most=max(each[name] for each in values))
        for name in names
    }
