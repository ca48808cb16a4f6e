"""Runs a program on a card, as often as a probe asks: what its environment brings along, and what came of it."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from oomscope.errors import OomscopeError
from oomscope.probe.analysis.failures import not_run
from oomscope.probe.job import OnProgress, ProbeJob, ProgramTarget, Progress, RunsOn
from oomscope.probe.machine.environment import allocator_conf, allocator_variables, compile_cache_variables
from oomscope.probe.machine.forked_run import RunHere
from oomscope.probe.measurement import Ending
from oomscope.probe.recording.settings import SessionSettings, budget_of
from oomscope.probe.recording.settings import variables_of as card_variables
from oomscope.probe.result import Failure
from oomscope.probe.targets.command.arguments import argv_of
from oomscope.probe.targets.command.output import tail_of
from oomscope.probe.targets.command.run import variables_of
from oomscope.probe.targets.program import arming
from oomscope.probe.targets.program.execution import Ended, run_program
from oomscope.probe.targets.program.representative import representative
from oomscope.probe.targets.program.results import ending_of
from oomscope.probe.targets.program.settings import ProgramSettings
from oomscope.probe.targets.world import environment as world_environment
from oomscope.virtual.settings import Peers

_HIDES_CARDS = "CUDA_VISIBLE_DEVICES"
_LEDGER = "card"
_LONGER = 10.0
"""How many times as long as the first run a further one may take, but for the seconds that any may take."""
_LEAST_LIMIT_S = 60.0


class ProgramRuns:
    """Begins the runs of one program (:data:`oomscope.probe.measure.Begin`).

    Args:
        job: what was asked.
        target: its program, which is run in the working directory.
        folder: a folder for what the program's processes leave.
    """

    def __init__(self, job: ProbeJob, target: ProgramTarget, folder: Path) -> None:
        self._job = job
        self._target = target
        self._folder = folder
        self._backwards: int | None = None
        self._limit_s = float("inf")

    def __call__(self, settings: SessionSettings, backend: RunsOn, progress: OnProgress) -> RunHere[Ending]:
        """Run the program once, under ``settings``."""

        def run() -> Ending:
            try:
                return self._run(settings, backend, progress)
            except OomscopeError as error:
                return not_run(error)

        return RunHere(run)

    def _run(self, settings: SessionSettings, backend: RunsOn, progress: OnProgress) -> Ending:
        progress(Progress(stage="step", total=self._job.iterations))
        log = sys.stdout.fileno()
        begin = os.fstat(log).st_size
        with tempfile.TemporaryDirectory(prefix="program-", dir=self._folder) as folder:
            ended = run_program(
                argv_of(self._target.command),
                self._environment(settings, backend, Path(folder)),
                Path(folder),
                told=lambda done: progress(Progress(stage="step", done=done, total=self._job.iterations)),
                limit_s=self._limit_s,
            )
            budget = budget_of(settings) if backend == "virtual" else None
            ending = ending_of(ended, settings, budget, self._job.iterations, self._target.rank)
        self._remember(ended)
        if ending.failure is not None:
            return replace(ending, failure=replace(ending.failure, detail=tail_of(log, begin)))
        return self._under_its_own_settings(ending, settings)

    def _environment(self, settings: SessionSettings, backend: RunsOn, folder: Path) -> dict[str, str]:
        told = ProgramSettings(
            folder=str(folder),
            backend="cuda" if backend == "cuda" else "virtual",
            card=settings.gpu.name if settings.gpu else None,
            iterations=self._job.iterations,
            max_entries=settings.max_entries,
            max_frames=settings.max_frames,
            limit_bytes=settings.limit_bytes or (settings.gpu.total_bytes if settings.gpu else None),
            world_size=self._job.world_size,
            is_recorded=settings.is_recorded,
            most_backwards=self._backwards if settings.values == "threes" else None,
        )
        environment = variables_of(self._job, os.environ)
        environment |= arming.variables(told, environment)
        if settings.allocator_conf:
            environment |= allocator_variables(settings.allocator_conf)
        if backend == "virtual":
            environment.pop(_HIDES_CARDS, None)
            peers: Peers = "alike" if self._job.world_size > 1 else "processes"
            environment |= card_variables(settings, ledger=str(folder / _LEDGER), peers=peers)
            environment |= compile_cache_variables(folder, environment)
        if self._job.world_size > 1:
            environment |= world_environment.variables(self._job.rank, self._job.world_size)
        return environment

    def _remember(self, ended: Ended) -> None:
        """Keep how long the first run took, and how many backward passes a run made at most.

        Under other values or settings the program might never step an optimizer, or never end. A run that failed made
        fewer backward passes than the whole one on a card without a limit.
        """
        self._limit_s = min(self._limit_s, max(_LEAST_LIMIT_S, _LONGER * ended.seconds))
        speaker = representative(ended.receipts, self._target.rank)
        if speaker is not None:
            self._backwards = max(self._backwards or 0, speaker.backwards)

    def _under_its_own_settings(self, ending: Ending, settings: SessionSettings) -> Ending:
        """Say where the program gave its allocator other settings than it was given; such a run shows no cure."""
        measurement = ending.measurement
        if measurement is None or measurement.allocator_conf == settings.allocator_conf:
            return ending
        own = f"the program itself sets its allocator to {measurement.allocator_conf or 'its defaults'}"
        if settings.allocator_conf != allocator_conf(self._job, os.environ):
            return Ending(measurement=None, failure=Failure(kind="step", message=own))
        note = f"{own}: that is what was measured"
        return replace(ending, measurement=replace(measurement, notes=(*measurement.notes, note)))
