"""Runs a program on a card, as often as a probe asks: starts it, follows its receipts, ends it, reads what it left.

A process that the probe has seen enough of is asked to end, which it may take some seconds for: a program that still
runs is killed, with everything that it started.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

from oomscope.errors import OomscopeError, TargetError
from oomscope.files import tail_of
from oomscope.probe.analysis.failures import not_run
from oomscope.probe.job import OnProgress, ProbeJob, ProgramTarget, Progress, RunsOn
from oomscope.probe.machine.environment import (
    VISIBLE_CARDS,
    allocator_conf,
    allocator_variables,
    compile_cache_variables,
)
from oomscope.probe.machine.forked_run import InlineRun
from oomscope.probe.machine.processes import ProcessTree, start_process_tree
from oomscope.probe.measurement import Ending
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import Failure, ProbeResult
from oomscope.probe.targets import checkout_imports
from oomscope.probe.targets.command import argv_of, variables_of
from oomscope.probe.targets.program import arming
from oomscope.probe.targets.program.receipt import ProgramSettings, read_receipts
from oomscope.probe.targets.program.results import Ended, ending_of, representative

GRACE_S: Final = 10.0
"""Seconds for a process that was asked to end, and then as many for the rest of the program."""
_LOOK_S: Final = 0.1
_LONGER = 10.0
"""Multiple of the first run's time that a further one may take, which may always take ``_LEAST_LIMIT_S``."""
_LEAST_LIMIT_S = 60.0
_CARDS_OF_A_MACHINE: Final = 8
"""Ranks that share a machine in a played world: the number of cards that the process sees."""
_ALONE: Final = (
    "a rank that is played alone receives nothing from the others: if another rank directs it, play that one"
)


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
        self._interpreter: str | None = None
        self._backwards: int | None = None
        self._limit_s = float("inf")

    def __call__(self, settings: SessionSettings, backend: RunsOn, progress: OnProgress) -> InlineRun[Ending]:
        """Run the program once, under ``settings``."""

        def run() -> Ending:
            try:
                return self._run(settings, backend, progress)
            except OomscopeError as error:
                return not_run(error)

        return InlineRun(run)

    def named(self, result: ProbeResult) -> ProbeResult:
        """Return a result of these runs with the Python that ran the program."""
        return replace(result, interpreter=self._interpreter)

    def _run(self, settings: SessionSettings, backend: RunsOn, progress: OnProgress) -> Ending:
        iterations = settings.iterations or self._job.iterations
        progress(Progress(stage="step", total=iterations))
        log = sys.stdout.fileno()
        begin = os.fstat(log).st_size
        with tempfile.TemporaryDirectory(prefix="program-", dir=self._folder) as folder:
            ended = run_program(
                argv_of(self._target),
                self._environment(settings, backend, Path(folder)),
                Path(folder),
                on_iterations=lambda done: progress(Progress(stage="step", done=done, total=iterations)),
                limit_s=self._limit_s,
            )
            if speaker := representative(ended.receipts):
                self._interpreter = speaker.interpreter
            budget = settings.budget() if backend == "virtual" else None
            rank = self._target.rank if settings.rank is None else settings.rank
            ending = ending_of(ended, settings, budget, iterations, rank)
        self._limit_s = min(self._limit_s, max(_LEAST_LIMIT_S, _LONGER * ended.seconds))
        if ending.failure is None and not settings.is_bounded:
            self._count_backwards(ended, iterations)
        if (failure := ending.failure) is not None:
            waits = failure.unrecorded == "before_a_step" and self._job.world_size > 1
            message = f"{failure.message}; {_ALONE}" if waits else failure.message
            return replace(ending, failure=replace(failure, message=message, detail=tail_of(log, begin)))
        return self._under_its_own_settings(ending, settings)

    def _count_backwards(self, ended: Ended, iterations: int) -> None:
        """Learn from a run how many backward passes as many ``iterations`` as were asked for may take.

        A run that ran out of memory made fewer passes than the whole one on a card without a limit.
        """
        speaker = representative(ended.receipts, self._target.rank)
        if speaker is not None:
            made = max(speaker.iterations, 1)
            passes = max(-(-speaker.backwards * max(iterations, made) // made), iterations)
            self._backwards = max(self._backwards or 0, passes)

    def _environment(self, settings: SessionSettings, backend: RunsOn, folder: Path) -> dict[str, str]:
        job, gpu = self._job, settings.gpu
        in_world = job.in_world or job.world_size > 1
        program_settings = ProgramSettings(
            folder=str(folder),
            backend=backend,
            card=gpu.name if gpu else None,
            iterations=settings.iterations or job.iterations,
            max_entries=settings.max_entries,
            max_frames=settings.max_frames,
            limit_bytes=settings.limit_bytes or (gpu.total_bytes if gpu else None),
            world_size=job.world_size if in_world else None,
            is_recorded=settings.is_recorded,
            most_backwards=self._backwards if settings.is_bounded else None,
            device=settings.device,
        )
        environment = variables_of(job, os.environ)
        environment |= arming.variables(program_settings, environment) | checkout_imports.variables(self._target.repo)
        if settings.allocator_conf:
            environment |= allocator_variables(settings.allocator_conf)
        if backend == "virtual":
            environment.pop(VISIBLE_CARDS, None)
            peers: Literal["alike", "processes"] = "alike" if in_world else "processes"
            environment |= replace(settings, ledger=str(folder / "card")).card_variables(peers=peers)
            environment |= compile_cache_variables(folder, environment)
        environment |= place_in_world(job.rank, job.world_size) if in_world else {}
        if environment.get("WORLD_SIZE") == "1":  # each run opens a port; other jobs may hold the default one
            environment["MASTER_PORT"] = str(_free_port())
        return environment

    def _under_its_own_settings(self, ending: Ending, settings: SessionSettings) -> Ending:
        """Note that the program set its allocator otherwise than it was asked to; such a run shows no cure."""
        measurement = ending.measurement
        if measurement is None or measurement.allocator_conf == settings.allocator_conf:
            return ending
        own = f"the program itself sets its allocator to {measurement.allocator_conf or 'its defaults'}"
        if settings.allocator_conf != allocator_conf(self._job, os.environ):
            return Ending(measurement=None, failure=Failure(kind="step", message=own))
        note = f"{own}: that is what was measured"
        return replace(ending, measurement=replace(measurement, notes=(*measurement.notes, note)))


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("", 0))
        return int(unused.getsockname()[1])


def place_in_world(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that make a process ``rank`` of ``world_size``, as torchrun names them."""
    local_world = min(world_size, _CARDS_OF_A_MACHINE)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local_world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // local_world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        # NCCL's heartbeat monitor asks the store every second, from a thread that Python does not know of.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    on_iterations: Callable[[int], None],
    limit_s: float = float("inf"),
) -> Ended:
    """Run ``argv`` to its end, or until its processes have seen enough, and return how it ended.

    Standard output and error are those of this process. Nothing that it started is left when this returns.

    Args:
        argv: the program and its arguments.
        environment: its variables, with those that let it be measured.
        folder: where its processes leave their receipts.
        on_iterations: called with the complete iterations of the process that is farthest, whenever there are more.
        limit_s: seconds that the program may take in all.

    Raises:
        TargetError: it cannot be started.
    """
    began = time.monotonic()
    tree = start_process_tree(argv, environment=environment)
    try:
        unfinished = _await(tree, folder, on_iterations, limit_s)
    finally:
        ended = tree.kill()
    if tree.error:
        raise TargetError(f"{argv[0]} cannot be run: {tree.error}", remedy="see that the checkout has it")
    return Ended(
        status=ended.status,
        killed=unfinished == "asked to end",
        overran=unfinished == "overran",
        receipts=tuple(read_receipts(folder)),
        seconds=time.monotonic() - began,
    )


def _await(
    tree: ProcessTree, folder: Path, on_iterations: Callable[[int], None], limit_s: float
) -> Literal["", "asked to end", "overran"]:
    """Wait until the program has ended, and return an empty string, or why it is not waited for any longer."""
    stopped, iterations, deadline = 0, 0, float("inf")
    last = time.monotonic() + limit_s
    while not tree.await_end(time.monotonic() + _LOOK_S):
        receipts = read_receipts(folder)
        farthest = max((receipt.iterations for receipt in receipts), default=0)
        if farthest > iterations:
            iterations = farthest
            on_iterations(iterations)
        asked = sum(receipt.state == "stopped" for receipt in receipts)
        if asked > stopped:
            stopped, deadline = asked, time.monotonic() + GRACE_S
        if time.monotonic() > deadline:
            return "asked to end"
        if time.monotonic() > last:
            return "overran"
    return ""
