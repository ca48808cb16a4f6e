"""Bands from measurements: a case is measured several times, and its spread becomes its bands.

The warn band is the spread, and the fail band twice that, or the metric's default where that is wider. The rates of
false alarms by the number of repeats are in docs/design/gate.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomscope.errors import MachineUnfitError, OomscopeError, TargetError
from oomscope.gate.baseline import Entry, Key
from oomscope.gate.night.cases import plan_of
from oomscope.gate.night.compare import REPORT_IT
from oomscope.gate.suite.metrics import METRICS, Band, Bands, values_of
from oomscope.gate.suite.suite import Case
from oomscope.printable import quoted
from oomscope.probe.demand import is_of_the_machine
from oomscope.probe.result import ProbeResult
from oomscope.probe.tuning.variants import Probe

SCHEMA_VERSION = 2
FAIL_SPREADS = 2
_ALONE = "keep the machine to itself while it is calibrated"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The range of one metric over the repeats."""

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
    """Spread of the repeats by metric."""

    def entry(self, before: Entry) -> Entry:
        """Return the baseline's entry with these bands; the expected values stay."""
        bands = {name: spread.bands(name) for name, spread in self.spreads.items() if name in before.values}
        return replace(before, bands=bands)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        metrics = {}
        for name, spread in self.spreads.items():
            bands = spread.bands(name)
            sizes = {"least": spread.least, "most": spread.most, "spread": spread.size}
            metrics[name] = {**sizes, "warn": bands.warn.to_text(), "fail": bands.fail.to_text()}
        return {"name": self.name, "repeats": self.repeats, "outcome": self.outcome, "metrics": metrics}


def calibrate(case: Case, probe: Probe, repeats: int, announce: Callable[[int], None]) -> Calibration:
    """Measure ``case`` ``repeats`` times and return its spread.

    Raises:
        OomscopeError: it cannot be measured as it is asked for, or a repeat met a defect.
        MachineUnfitError: a repeat ran out of what the rest of the machine had left.
        TargetError: a repeat failed, or ended otherwise than the first.
    """
    plan = plan_of(case)
    results: list[ProbeResult] = []
    for number in range(1, repeats + 1):
        results.append(plan.measure(probe, threading.Event()))
        _refuse(case, results[0], results[-1], number)
        announce(number)
    values = [values_of(result) for result in results]
    spreads = {
        name: Spread(least=min(each[name] for each in values), most=max(each[name] for each in values))
        for name in METRICS
        if all(name in each for each in values)
    }
    key = Key.of(case.digest, results[0])
    return Calibration(name=case.name, key=key, repeats=repeats, outcome=results[0].outcome, spreads=spreads)


def _refuse(case: Case, first: ProbeResult, last: ProbeResult, number: int) -> None:
    if last.outcome == "error":
        reason = last.failure.reason if last.failure else "no reason was given"
        if last.failure and last.failure.kind == "internal":
            raise OomscopeError(
                f"{quoted(case.name)} ended in an internal error: {reason}", where=case.where, remedy=REPORT_IT
            )
        raise TargetError(f"{quoted(case.name)} failed: {reason}", where=case.where, remedy="repair it first")
    if last.verdict is not None and is_of_the_machine(last):
        what = f"{quoted(case.name)} ran out of memory on repeat {number}: {last.verdict.headline}"
        raise MachineUnfitError(what, where=case.where, remedy=_ALONE)
    if last.outcome != first.outcome or Key.of(case.digest, last) != Key.of(case.digest, first):
        what = f"{quoted(case.name)} ended differently on repeat {number} than on the first"
        raise TargetError(what, where=case.where, remedy=_ALONE)
