"""``oomscope bisect good.yaml..bad.yaml``: a minimal set of configuration keys at fault, and the bytes of each."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomscope.bisect.deltas import Changes, minimal_set, smallest_valid, units_of
from oomscope.bisect.ends import judge_ends
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.growth import grown_sites
from oomscope.bisect.measured import Bytes, bytes_of
from oomscope.bisect.mixture import Mixture
from oomscope.bisect.prober import OutOfTimeError, Probe, Prober, Question
from oomscope.bisect.reporter import Plan, Reporter, Silent
from oomscope.bisect.request import ConfigRequest
from oomscope.bisect.result import BisectResult, Evidence, KeysCulprit, ProbeRecord, Role, StepRow
from oomscope.bisect.search import Search
from oomscope.probe import launch
from oomscope.probe.jobs import bundled_job
from oomscope.probe.ranks import chosen_ranks
from oomscope.probe.result import ProbeResult


def bisect_configs(
    request: ConfigRequest,
    *,
    probe: Probe = launch.run,
    reporter: Reporter | None = None,
    clock: Callable[[], float] = time.monotonic,
    environment: Mapping[str, str] | None = None,
) -> BisectResult:
    """Find the keys by which ``request.range.bad`` goes wrong where ``request.range.good`` does not.

    Args:
        request: what to search.
        probe: measures one job.
        reporter: told of every probe as it comes.
        clock: seconds, for the deadline.
        environment: the variables that probes see; the process's own unless given.

    Raises:
        ConfigError: a file or an override is wrong.
        MachineUnfitError: this machine cannot probe.
    """
    from oomscope.config.load import load_config

    good = load_config(request.range.good, request.overrides).config
    bad = load_config(request.range.bad, request.overrides).config
    prober = Prober.of(request, probe, reporter or Silent(), clock, os.environ if environment is None else environment)
    return ConfigBisect(request, Mixture(good, bad), prober).run()


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
            outcome="suspects",
            message="",
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
            answered = replace(base, message="the deadline passed: the keys at fault are among those that differ")
        return replace(answered, probes=tuple(self.prober.records), notes=tuple(self.prober.notes))

    def _announce(self, units: int) -> None:
        request = self.request
        self.prober.reporter.planned(
            Plan(
                title=f"{request.range}, bad is {request.bad}",
                good=str(request.range.good),
                bad=str(request.range.bad),
                candidates=len(self.mixture.keys),
                considered=units,
                probes_at_most=2 + Search.over(units).probes_left if units else 1,
                notes=("each key that must go with another costs one more bisection",) if units > 1 else (),
            )
        )

    def _search(self, base: BisectResult, units: list[Changes]) -> BisectResult:
        none, everything = frozenset[int](), self.mixture.all
        good = self._ask(none, "good end", 1)
        bad = self._ask(everything, "bad end", 0) if units else good
        answered = judge_ends(good, bad)
        if answered is not None:
            return replace(base, outcome=answered.kind, message=answered.reason)
        return self._with_culprit(base, self._minimal(units))

    def _minimal(self, units: list[Changes]) -> list[Changes]:
        questions = minimal_set(units, self.mixture.is_valid)
        try:
            question = next(questions)
            while True:
                answer = self._ask(question.changes, "search", max(0, question.probes_left - 1)).answer
                question = questions.send(answer)
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
        rows = [
            StepRow(commit=None, label=_listed(self.mixture.names(unit)), keys=self.mixture.names(unit), delta=delta)
            for unit, delta in zip(found, alone, strict=True)
            if delta is not None
        ]
        others = self.mixture.all - fault
        rest = self._bytes(self.mixture.all) - self._bytes(fault)
        if len(found) > 1:
            rows.append(StepRow(commit=None, label="only together", keys=self.mixture.names(fault), delta=interaction))
        if others:
            rows.append(StepRow(commit=None, label="all other keys", keys=self.mixture.names(others), delta=rest))
        return replace(
            base,
            outcome="culprit",
            message=f"{_listed(self.mixture.names(fault))}: {self.records[fault].reason}",
            culprit=culprit,
            change=change,
            sites=sites,
            steps=tuple(rows),
            last_good=self._evidence(none),
            first_bad=self._evidence(fault),
        )

    def _each_alone(self, found: list[Changes], fault: Changes) -> list[Bytes | None]:
        """Return the bytes of each unit by itself, on top of those that it cannot do without; None where untestable."""
        alone: list[Bytes | None] = []
        for unit in found:
            made = smallest_valid(unit, fault, self.mixture.is_valid)
            before = made - unit if self.mixture.is_valid(made - unit) else frozenset[int]()
            try:
                for changes in (before, made):
                    if changes not in self.records:
                        self._ask(changes, "key alone", 0)
            except OutOfTimeError:
                self.prober.note("the deadline passed before every key was measured by itself")
            measured = [bytes_of(self.results[changes]) for changes in (before, made) if changes in self.results]
            known = [sizes for sizes in measured if sizes is not None]
            alone.append(known[1] - known[0] if len(known) == 2 else None)
        return alone

    def _ask(self, changes: Changes, role: Role, left: int) -> ProbeRecord:
        keys = self.mixture.names(changes)
        name = str(self.request.range.bad) if role == "bad end" else _name(self.request.range.good, keys)
        record, result = self.prober.ask(
            Question(role=role, name=name, keys=keys), self._experiment(changes), lambda _: left
        )
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
        words = [str(self.request.range.good), *self.request.overrides, *self.mixture.overrides(changes)]
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
