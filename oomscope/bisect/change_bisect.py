"""Searches among changes that are not commits: the keys of two configuration files, changes of the environment.

The answer is a minimal set of changes, the bytes of each, and rows that sum to the difference of the ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from oomscope.bisect.changes.change_set import ChangeSet, CombinedChanges, OneCommit, everything, listed, names, title
from oomscope.bisect.changes.config_keys import ConfigEnd, ConfigKeys
from oomscope.bisect.changes.delta_search import NONE, DeltaSearch, MinimalSet, probes_for
from oomscope.bisect.requests import ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.growth import grown_sites
from oomscope.bisect.results.predicate import bad_text
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import (
    OUT_OF_TIME,
    Axis,
    BisectResult,
    KeysCulprit,
    ProbeEvidence,
    StepRow,
    SuspectedChange,
)
from oomscope.bisect.run.experiment import OutOfTimeError
from oomscope.bisect.run.prober import Prober, Services
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.line import Search
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.search_setup import journalled, open_repository, prepared
from oomscope.bisect.targets.subjects import ConfigSubject, path_in_repo
from oomscope.bisect.vcs.ranges import FileAt
from oomscope.bisect.vcs.source_text import SAME_CODE
from oomscope.errors import UsageError
from oomscope.probe.machine.checks import check_card

TOGETHER = "only together"
NOT_ALONE = "only together, or not measured by itself"
ALL_OTHERS = "all other keys"


@journalled("config")
def bisect_configs(request: ConfigRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the keys of ``request.range.bad`` that make ``request.range.good`` bad.

    Raises:
        ConfigError: a file or an override is wrong.
        GitError: a file that is named by a commit is not there.
        UsageError: the sides do not differ, and are not two commits, where that may be the answer.
        InputError: results cannot be kept there.
        MachineUnfitError: this machine cannot probe.
    """
    request.state_dirs.make()
    good, bad = (_end(file, request) for file in (request.range.good, request.range.bad))
    keys = ConfigKeys(good, bad, request.dialect, request.overrides)
    change_set = CombinedChanges((keys, *request.layers)) if request.layers else keys
    commits = {file.commit if isinstance(file, FileAt) else "" for file in (request.range.good, request.range.bad)}
    if "" in commits or len(commits) == 1:
        _refuse_equal(change_set)
    with Prober.of(request, **services) as prober:
        return DeltaBisect(change_set, prober, noise=request.noise).run()


def _refuse_equal(change_set: ChangeSet) -> None:
    if not change_set.keys:
        raise UsageError(
            "; ".join(("good and bad do not differ in any key, variable or package", *change_set.remarks)),
            where=f"{change_set.good}..{change_set.bad}",
            remedy="give two that differ (credentials and variables of the shell do not count)",
        )


def _end(file: Path | FileAt, request: ConfigRequest) -> ConfigEnd:
    from oomscope.config.importers.load import load_in
    from oomscope.config.load import read_file

    if isinstance(file, Path):
        loaded = load_in(request.dialect, read_file(file), source=str(file), overrides=request.overrides)
        check_card(loaded)
        return ConfigEnd(name=str(file), config=loaded.config, file=str(file))
    repository = open_repository(request)
    subject = ConfigSubject(repository, path_in_repo(file.path), request.overrides, request.dialect)
    commit = repository.resolve(file.commit or file.revision)
    written, write = subject.written(commit), (subject.write(commit),)
    return ConfigEnd(name=str(file), config=subject.read(commit), file=written, write=write)


@journalled("environment")
def bisect_environment(request: EnvironmentRequest, **services: Unpack[Services]) -> BisectResult:
    """Find the changes of the environment that make ``request.revision`` bad.

    Raises:
        UsageError: the environments do not differ.
        OomscopeError: as for :func:`~oomscope.bisect.commit_bisect.bisect_commits`.
    """
    repository = open_repository(request)
    commit = repository.resolve(request.revision)
    with prepared(request, repository, (commit,), services) as (subject, prober):
        changes = CombinedChanges((OneCommit(subject, commit), *request.layers))
        _refuse_equal(changes)
        return DeltaBisect(changes, prober, axis="environment", noise=request.noise).run()


@dataclass(frozen=True)
class DeltaBisect:
    """A search among the changes of a change set."""

    change_set: ChangeSet
    prober: Prober
    axis: Axis = "config"
    noise: Noise | None = None

    def run(self) -> BisectResult:
        """Check both ends, search, measure each change found by itself, and return the answer."""
        count, units = len(self.change_set.keys), self.change_set.units()
        for remark in self.change_set.remarks:
            self.prober.note(remark)
        self._announce(len(units))
        answered = BisectResult(
            axis=self.axis,
            outcome="inconclusive",
            message=f"{OUT_OF_TIME} before both ends were checked",
            good=self.change_set.good,
            bad=self.change_set.bad,
            bad_class=str(self.prober.bad),
            candidates=count,
            on_line=count,
            considered=len(units),
        )
        search = DeltaSearch(self.change_set, self.prober, self.noise)
        try:
            ends = search.ends()
            if ends is not None:
                answered = replace(answered, outcome=ends.kind, message=ends.reason)
            else:
                answered = self._with_culprit(answered, search, search.minimal(lambda: units))
        except OutOfTimeError:
            answered = self._with_suspects(answered, search)
        search.weighing.remark()
        return self.prober.completed(answered)

    def _announce(self, units: int) -> None:
        change_set, more_if = self.change_set, []
        if units > 1:
            each = Search.over(units).probes_left + 3
            more_if.append(f"several keys are at fault together (about {each} for each further one)")
        if self.noise is not None and self.noise.may_repeat:
            more_if.append("one answer is not sure enough (states are probed again)")
        self.prober.announce(
            SearchPlan(
                title=f"{change_set.good}..{change_set.bad}, bad = {bad_text(str(self.prober.bad))}",
                good=change_set.good,
                bad=change_set.bad,
                candidates=len(change_set.keys),
                considered=units,
                # Both ends, the bisection, and whether what it found is enough by itself.
                probes_at_most=2 + probes_for(units) if units else 1,
                more_if=tuple(more_if),
            )
        )

    def _with_culprit(self, base: BisectResult, search: DeltaSearch, found: MinimalSet) -> BisectResult:
        fault = found.changes
        culprit = KeysCulprit(
            keys=tuple(
                self.change_set.change(key, delta if len(unit) == 1 else None)
                for unit, delta in zip(found.units, found.alone, strict=True)
                for key in names(self.change_set, unit)
            ),
            delta=found.delta,
            interaction=None if None in found.alone else found.interaction,
            sites=grown_sites(search.results[NONE], search.results[fault], SAME_CODE),
        )
        message = f"{listed(names(self.change_set, fault))}: {search.records[fault].reason}"
        base = replace(base, outcome="culprit", message=message, culprit=culprit, steps=self._steps(search, found))
        return self._with_evidence(base, search, fault)

    def _with_suspects(self, base: BisectResult, search: DeltaSearch) -> BisectResult:
        """Return what is known when the deadline ends the search: the smallest set that was seen to be bad."""
        fault = search.smallest_bad()
        if fault is None:
            return base
        changes = [self.change_set.change(name) for name in names(self.change_set, fault)]
        suspects = tuple(
            SuspectedChange(key=change.key, subject=" → ".join(change.texts), reason=OUT_OF_TIME) for change in changes
        )
        message = f"what is at fault is among {len(changes)} keys: {OUT_OF_TIME}"
        return self._with_evidence(replace(base, outcome="suspects", message=message, suspects=suspects), search, fault)

    def _with_evidence(self, base: BisectResult, search: DeltaSearch, fault: Changes) -> BisectResult:
        good, bad = (
            ProbeEvidence(
                name=title(self.change_set, changes),
                result=search.results[changes],
                commands=self.change_set.commands(changes),
            )
            for changes in (NONE, fault)
        )
        return replace(
            base,
            change=search.bytes(fault) - search.bytes(NONE),
            sites=grown_sites(good.result, bad.result, SAME_CODE),
            last_good=good,
            first_bad=replace(bad, result=self.prober.with_cures(search.experiment(fault), bad.result)),
        )

    def _steps(self, search: DeltaSearch, found: MinimalSet) -> tuple[StepRow, ...]:
        """Return the rows that sum to the difference of the ends.

        Each unit at fault by itself where that was measured, then what is left of all of them together, then all
        other changes.
        """
        rows = [
            StepRow(commit=None, label=listed(keys := names(self.change_set, unit)), keys=keys, delta=delta)
            for unit, delta in zip(found.units, found.alone, strict=True)
            if delta is not None
        ]
        if len(found.units) > 1 or not rows:
            label = TOGETHER if None not in found.alone else NOT_ALONE
            keys = names(self.change_set, found.changes)
            rows.append(StepRow(commit=None, label=label, keys=keys, delta=found.interaction))
        if others := everything(self.change_set) - found.changes:
            rest = search.bytes(everything(self.change_set)) - search.bytes(found.changes)
            rows.append(StepRow(commit=None, label=ALL_OTHERS, keys=names(self.change_set, others), delta=rest))
        return tuple(rows)
