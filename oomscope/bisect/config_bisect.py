"""``oomscope bisect good.yaml..bad.yaml``: a minimal set of configuration keys at fault, and the bytes of each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.deltas import Changes, minimal_set, smallest_valid, units_of
from oomscope.bisect.ends import judge_ends
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.growth import grown_sites
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.mixture import Mixture
from oomscope.bisect.prober import Means, Prober, Question
from oomscope.bisect.reporter import Plan
from oomscope.bisect.request import ConfigRequest
from oomscope.bisect.result import BisectResult, Evidence, KeysCulprit, ProbeRecord, Role, StepRow, Suspect
from oomscope.bisect.search import Answer, Search
from oomscope.probe.card import check_card
from oomscope.probe.jobs import bundled_job
from oomscope.probe.ranks import chosen_ranks
from oomscope.probe.result import ProbeResult

if TYPE_CHECKING:
    from oomscope.config.load import LoadedConfig

TOGETHER = "only together"
NOT_ALONE = "only together, or not measured by itself"
ALL_OTHERS = "all other keys"


def bisect_configs(request: ConfigRequest, **means: Unpack[Means]) -> BisectResult:
    """Find the keys by which ``request.range.bad`` goes wrong where ``request.range.good`` does not.

    Args:
        request: what to search.
        means: see :class:`~oomscope.bisect.prober.Means`.

    Raises:
        ConfigError: a file or an override is wrong.
        InputError: there is no place for results.
        MachineUnfitError: this machine cannot probe.
    """
    request.places.make()
    good, bad = (_loaded(file, request) for file in (request.range.good, request.range.bad))
    check_card(good)
    check_card(bad)
    return ConfigBisect(request, Mixture(good.config, bad.config), Prober.of(request, **means)).run()


def _loaded(file: Path, request: ConfigRequest) -> LoadedConfig:
    from oomscope.config.dialects.load import load_in
    from oomscope.config.load import read_file

    return load_in(request.dialect, read_file(file), source=str(file), overrides=request.overrides)


@dataclass
class ConfigBisect:
    """A search over the keys of two configurations."""

    request: ConfigRequest
    mixture: Mixture
    prober: Prober
    records: dict[Changes, ProbeRecord] = field(default_factory=dict)
    results: dict[Changes, ProbeResult] = field(default_factory=dict)

    def run(self) -> BisectResult:
        """Check both ends, search, measure each key found by itself, and return the answer."""
        count = len(self.mixture.keys)
        units = units_of(count, self.mixture.is_valid)
        self._announce(len(units))
        base = BisectResult(
            axis="config",
            outcome="inconclusive",
            message="the deadline passed before both ends were checked",
            good=str(self.request.range.good),
            bad=str(self.request.range.bad),
            bad_class=str(self.request.bad),
            candidates=count,
            on_line=count,
            considered=len(units),
        )
        try:
            answered = self._search(base, units)
        except OutOfTimeError:
            answered = self._with_suspects(base)
        return replace(answered, probes=tuple(self.prober.records), notes=tuple(self.prober.notes))

    def _announce(self, units: int) -> None:
        request = self.request
        halvings = Search.over(units).probes_left if units else 0
        self.prober.reporter.planned(
            Plan(
                title=f"{request.range}, bad is {request.bad}",
                good=str(request.range.good),
                bad=str(request.range.bad),
                candidates=len(self.mixture.keys),
                considered=units,
                # Both ends, the bisection, and whether what it found is enough by itself.
                probes_at_most=2 + halvings + (units > 1) if units else 1,
                more_if=(f"several keys are at fault together (about {halvings + 3} for each further one)",)
                if units > 1
                else (),
            )
        )

    def _search(self, base: BisectResult, units: list[Changes]) -> BisectResult:
        none, everything = frozenset[int](), self.mixture.all
        good = self._ask(none, "good end")
        bad = self._ask(everything, "bad end") if units else good
        answered = judge_ends(good, bad)
        if answered is not None:
            return replace(base, outcome=answered.kind, message=answered.reason)
        return self._with_culprit(base, self._minimal(units))

    def _minimal(self, units: list[Changes]) -> list[Changes]:
        questions = minimal_set(units, self.mixture.is_valid)
        try:
            changes = next(questions)
            while True:
                changes = questions.send(self._ask(changes, "search").answer)
        except StopIteration as stop:
            found: list[Changes] = stop.value
            return found

    def _with_culprit(self, base: BisectResult, found: list[Changes]) -> BisectResult:
        none = frozenset[int]()
        fault = none.union(*found)
        change = self._bytes(fault) - self._bytes(none)
        alone = self._each_alone(found, fault)
        known = [delta for delta in alone if delta is not None]
        interaction = change - sum(known, start=Bytes())
        sites = grown_sites(self.results[none], self.results[fault])
        culprit = KeysCulprit(
            keys=tuple(
                self.mixture.change(key, delta if len(unit) == 1 else None)
                for unit, delta in zip(found, alone, strict=True)
                for key in self.mixture.names(unit)
            ),
            delta=change,
            interaction=interaction if len(known) == len(found) else None,
            sites=sites,
        )
        return replace(
            base,
            outcome="culprit",
            message=f"{_listed(self.mixture.names(fault))}: {self.records[fault].reason}",
            culprit=culprit,
            change=change,
            sites=sites,
            steps=self._steps(found, alone, interaction),
            last_good=self._evidence(none),
            first_bad=self._evidence(fault),
        )

    def _with_suspects(self, base: BisectResult) -> BisectResult:
        """Return what is known when the deadline ends the search: the smallest set of keys that was seen to be bad."""
        bad = [changes for changes, record in self.records.items() if record.answer is Answer.BAD]
        if len(self.records) < 2 or not bad:
            return base
        none, fault = frozenset[int](), min(bad, key=len)
        names = self.mixture.names(fault)
        changes = [self.mixture.change(name) for name in names]
        return replace(
            base,
            outcome="suspects",
            message=f"what is at fault is among {len(names)} keys: the deadline passed",
            suspects=tuple(
                Suspect(key=change.key, subject=f"{change.good} → {change.bad}", reason="the deadline passed")
                for change in changes
            ),
            change=self._bytes(fault) - self._bytes(none),
            sites=grown_sites(self.results[none], self.results[fault]),
            last_good=self._evidence(none),
            first_bad=self._evidence(fault),
        )

    def _steps(self, found: list[Changes], alone: list[Bytes | None], interaction: Bytes) -> tuple[StepRow, ...]:
        """Return the rows that sum to the difference of the two files.

        Each unit at fault by itself where that was measured, then what is left of all of them together, then all
        other keys.
        """
        fault = frozenset[int]().union(*found)
        rows = [
            StepRow(commit=None, label=_listed(self.mixture.names(unit)), keys=self.mixture.names(unit), delta=delta)
            for unit, delta in zip(found, alone, strict=True)
            if delta is not None
        ]
        if len(found) > 1 or not rows:
            label = TOGETHER if None not in alone else NOT_ALONE
            rows.append(StepRow(commit=None, label=label, keys=self.mixture.names(fault), delta=interaction))
        if others := self.mixture.all - fault:
            rest = self._bytes(self.mixture.all) - self._bytes(fault)
            rows.append(StepRow(commit=None, label=ALL_OTHERS, keys=self.mixture.names(others), delta=rest))
        return tuple(rows)

    def _each_alone(self, found: list[Changes], fault: Changes) -> list[Bytes | None]:
        """Return the bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
        alone: list[Bytes | None] = []
        for unit in found:
            made = smallest_valid(unit, fault, self.mixture.is_valid)
            before = made - unit if self.mixture.is_valid(made - unit) else frozenset[int]()
            try:
                for changes in (before, made):
                    if changes not in self.records:
                        self._ask(changes, "key alone")
            except OutOfTimeError:
                self.prober.note("the deadline passed before every key was measured by itself")
            measured = [bytes_of(self.results[changes]) for changes in (before, made) if changes in self.results]
            known = [sizes for sizes in measured if sizes is not None]
            alone.append(known[1] - known[0] if len(known) == 2 else None)
        return alone

    def _ask(self, changes: Changes, role: Role) -> ProbeRecord:
        keys = self.mixture.names(changes)
        name = str(self.request.range.bad) if role == "bad end" else _name(self.request.range.good, keys)
        record, result = self.prober.ask(Question(role=role, name=name, keys=keys), self._experiment(changes))
        self.records[changes] = record
        if result is not None:
            self.results[changes] = result
        return record

    def _experiment(self, changes: Changes) -> Experiment | Untestable:
        config = self.mixture.config(changes)
        if isinstance(config, Untestable):
            return config
        return Experiment(job=bundled_job(config), ranks=tuple(chosen_ranks(config.probe.rank, config)))

    def _bytes(self, changes: Changes) -> Bytes:
        """Return the bytes of a probe that was answered good or bad, and hence measured."""
        return bytes_of(self.results[changes]) or Bytes()

    def _evidence(self, changes: Changes) -> Evidence:
        dialect = ["--from", self.request.dialect] if self.request.dialect else []
        words = [*dialect, str(self.request.range.good), *self.request.overrides, *self.mixture.overrides(changes)]
        return Evidence(
            name=_name(self.request.range.good, self.mixture.names(changes)),
            result=self.results[changes],
            commands=(shlex.join(["oomscope", "probe", *words]),),
        )


def _name(file: Path, keys: tuple[str, ...]) -> str:
    return f"{file} with {_listed(keys)}" if keys else str(file)


def _listed(keys: tuple[str, ...], shown: int = 3) -> str:
    """Return a few keys by name, and of more how many."""
    if len(keys) <= shown:
        return ", ".join(keys)
    return f"{', '.join(keys[: shown - 1])} and {len(keys) - shown + 1} more keys"
