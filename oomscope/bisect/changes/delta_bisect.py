"""The answer of a search among changes that are not commits: a minimal set of them, the bytes of each, and rows that
sum to the difference of the ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomscope.bisect.changes.change_set import ChangeSet, everything, listed, names, title
from oomscope.bisect.changes.delta_search import NONE, DeltaSearch, MinimalSet, probes_for
from oomscope.bisect.results.growth import grown_sites
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import Axis, BisectResult, KeysCulprit, ProbeEvidence, StepRow, SuspectedChange
from oomscope.bisect.run.deadline import OutOfTimeError
from oomscope.bisect.run.prober import Prober
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.line import Search
from oomscope.bisect.vcs.source_text import SAME_CODE

TOGETHER = "only together"
NOT_ALONE = "only together, or not measured by itself"
ALL_OTHERS = "all other keys"


@dataclass(frozen=True)
class DeltaBisect:
    """A search among the changes of a change set.

    Args:
        mixture: the changes.
        prober: who answers.
        axis: what kind of changes they are.
        noise: how to meet answers that may be wrong; None leaves it to the backend.
    """

    change_set: ChangeSet
    prober: Prober
    axis: Axis = "config"
    noise: Noise | None = None

    def run(self) -> BisectResult:
        """Check both ends, search, measure each change found by itself, and return the answer."""
        count, units = len(self.change_set.keys), self.change_set.units()
        self._announce(len(units))
        base = BisectResult(
            axis=self.axis,
            outcome="inconclusive",
            message="the deadline passed before both ends were checked",
            good=self.change_set.good,
            bad=self.change_set.bad,
            bad_class=str(self.prober.bad),
            candidates=count,
            on_line=count,
            considered=len(units),
        )
        search = DeltaSearch(self.change_set, self.prober, self.noise)
        try:
            answered = self._searched(base, search, units)
        except OutOfTimeError:
            answered = self._with_suspects(base, search)
        search.weighing.remark()
        return replace(
            answered,
            probes=tuple(self.prober.records),
            notes=tuple(self.prober.notes),
            cost=self.prober.cost,
        )

    def _announce(self, units: int) -> None:
        change_set = self.change_set
        more_if = []
        if units > 1:
            each = Search.over(units).probes_left + 3
            more_if.append(f"several keys are at fault together (about {each} for each further one)")
        if self.noise is not None and self.noise.is_heeded:
            more_if.append("one answer is not sure enough (states are probed again)")
        self.prober.reporter.planned(
            SearchPlan(
                title=f"{change_set.good}..{change_set.bad}, bad is {self.prober.bad}",
                good=change_set.good,
                bad=change_set.bad,
                candidates=len(change_set.keys),
                considered=units,
                # Both ends, the bisection, and whether what it found is enough by itself.
                probes_at_most=2 + probes_for(units) if units else 1,
                more_if=tuple(more_if),
            )
        )

    def _searched(self, base: BisectResult, search: DeltaSearch, units: list[Changes]) -> BisectResult:
        answered = search.ends()
        if answered is not None:
            return replace(base, outcome=answered.kind, message=answered.reason)
        return self._with_culprit(base, search, search.minimal(lambda: units))

    def _with_culprit(self, base: BisectResult, search: DeltaSearch, found: MinimalSet) -> BisectResult:
        fault = found.changes
        sites = grown_sites(search.results[NONE], search.results[fault], SAME_CODE)
        culprit = KeysCulprit(
            keys=tuple(
                self.change_set.change(key, delta if len(unit) == 1 else None)
                for unit, delta in zip(found.units, found.alone, strict=True)
                for key in names(self.change_set, unit)
            ),
            delta=found.delta,
            interaction=None if None in found.alone else found.interaction,
            sites=sites,
        )
        return replace(
            base,
            outcome="culprit",
            message=f"{listed(names(self.change_set, fault))}: {search.records[fault].reason}",
            culprit=culprit,
            change=found.delta,
            sites=sites,
            steps=self._steps(search, found),
            last_good=self._evidence(search, NONE),
            first_bad=self._evidence(search, fault),
        )

    def _with_suspects(self, base: BisectResult, search: DeltaSearch) -> BisectResult:
        """Return what is known when the deadline ends the search: the smallest set that was seen to be bad."""
        fault = search.smallest_bad()
        if fault is None:
            return base
        changes = [self.change_set.change(name) for name in names(self.change_set, fault)]
        return replace(
            base,
            outcome="suspects",
            message=f"what is at fault is among {len(changes)} keys: the deadline passed",
            suspects=tuple(
                SuspectedChange(key=change.key, subject=f"{change.good} → {change.bad}", reason="the deadline passed")
                for change in changes
            ),
            change=search.bytes(fault) - search.bytes(NONE),
            sites=grown_sites(search.results[NONE], search.results[fault], SAME_CODE),
            last_good=self._evidence(search, NONE),
            first_bad=self._evidence(search, fault),
        )

    def _steps(self, search: DeltaSearch, found: MinimalSet) -> tuple[StepRow, ...]:
        """Return the rows that sum to the difference of the ends.

        Each unit at fault by itself where that was measured, then what is left of all of them together, then all
        other changes.
        """
        fault = found.changes
        rows = [
            StepRow(commit=None, label=listed(keys := names(self.change_set, unit)), keys=keys, delta=delta)
            for unit, delta in zip(found.units, found.alone, strict=True)
            if delta is not None
        ]
        if len(found.units) > 1 or not rows:
            label = TOGETHER if None not in found.alone else NOT_ALONE
            keys = names(self.change_set, fault)
            rows.append(StepRow(commit=None, label=label, keys=keys, delta=found.interaction))
        if others := everything(self.change_set) - fault:
            rest = search.bytes(everything(self.change_set)) - search.bytes(fault)
            rows.append(StepRow(commit=None, label=ALL_OTHERS, keys=names(self.change_set, others), delta=rest))
        return tuple(rows)

    def _evidence(self, search: DeltaSearch, changes: Changes) -> ProbeEvidence:
        return ProbeEvidence(
            name=title(self.change_set, changes),
            result=search.results[changes],
            commands=self.change_set.commands(changes),
        )
