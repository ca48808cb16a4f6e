"""Runs a command in its checkout and returns what its exit status, its output and its snapshots say.

This is the work of a probe's worker, so the one who started that ends the command and its family after a time-out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from oomscope.capture.singleton import PROBE_MARK
from oomscope.errors import OomscopeError, TargetError
from oomscope.probe.job import CommandTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from oomscope.probe.targets.command.answer import answer, unmeasured
from oomscope.probe.targets.command.arguments import argv_of, metric_of
from oomscope.probe.targets.command.output import read_output, tail_of
from oomscope.probe.targets.command.snapshots import stamps_of
from oomscope.probe.targets.harness import HarnessError, place_of
from oomscope.virtual.cards import card_bytes

LIMIT_VARIABLE = "OOMSCOPE_LIMIT_BYTES"


def run_command(job: ProbeJob, target: CommandTarget, progress: Callable[[Progress], None]) -> ProbeResult:
    """Run the command of ``target`` in the working directory, its checkout, and return the result.

    Standard output and error of this process are one file that can be read back.
    """
    log = sys.stdout.fileno()
    start = os.fstat(log).st_size
    result = _result(job, target, progress, log, start)
    if result.failure is None:
        return result
    return replace(result, failure=replace(result.failure, detail=tail_of(log, start)))


def _result(
    job: ProbeJob, target: CommandTarget, progress: Callable[[Progress], None], log: int, start: int
) -> ProbeResult:
    try:
        argv = argv_of(target.command)
        metric = metric_of(target.metric_regex) if target.metric_regex is not None else None
        before = stamps_of(place_of(target), target.snapshot_glob)
        progress(Progress(stage="step"))
        status = _run(argv, variables_of(job, os.environ))
        said = read_output(log, start, metric)
        progress(Progress(stage="analyse"))
        return answer(job, target, status, said, before)
    except HarnessError as error:
        return unmeasured(job, "usage", str(error))
    except OomscopeError as error:
        return unmeasured(job, "step", str(error))


def variables_of(job: ProbeJob, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command: the worker's, with what it may want to know of the job.

    ``OOMSCOPE_PROBE`` is no part of it: a command that records itself is not recorded by anybody else.
    """
    told = {
        "OOMSCOPE_BACKEND": job.backend,
        "OOMSCOPE_RANK": str(job.rank),
        "OOMSCOPE_WORLD_SIZE": str(job.world_size),
        "OOMSCOPE_ITERATIONS": str(job.iterations),
        "OOMSCOPE_SEED": str(job.seed),
    }
    if (limit := card_bytes(job.limit_bytes, job.gpu)) is not None:
        told[LIMIT_VARIABLE] = str(limit)
    others = {name: value for name, value in environment.items() if name not in {PROBE_MARK, LIMIT_VARIABLE}}
    return {**others, **told}


def _run(argv: list[str], environment: Mapping[str, str]) -> int:
    """Run ``argv`` and return its exit status, negative for a signal.

    Raises:
        TargetError: it cannot be started.
    """
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TargetError(f"{argv[0]} cannot be run: {reason}", remedy="see that the checkout has it") from None
    return process.wait()
