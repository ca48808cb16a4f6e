"""Runs a job's target under a session and says what came of it; the worker's whole work.

After an OOM the target is run once more on a card without a limit, where there can be one, which tells what the whole
run would have needed; also after a run that fits only because the allocator emptied its cache, which tells what it
would hold otherwise. After a failure by fragmentation it is run under the settings that may cure it. The result is
handed over before each of these, so a failure there costs no more than what it would have told.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oomscope.errors import (
    InputError,
    MachineUnfitError,
    NothingOnDeviceError,
    OomscopeError,
    SnapshotError,
    UsageError,
)
from oomscope.probe.analysis.failures import (
    Refusal,
    describe,
    details,
    kind_of_ours,
    not_run,
    refusal_in,
    untestable_reason,
)
from oomscope.probe.analysis.value_dependence import doubt_of, is_doubtful, unchecked
from oomscope.probe.job import CheckoutTarget, OnProgress, ProbeJob, Progress, RunsOn
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.environment import allocator_variables, compile_cache_variables
from oomscope.probe.machine.forked_run import ForkedRun, RunHere, end_as
from oomscope.probe.measurement import Ending, FailedAllocation, Measurement, RefusedElsewhere
from oomscope.probe.recording.open_session import open_session, resolve_backend, settings_of
from oomscope.probe.recording.settings import SessionSettings
from oomscope.probe.result import ErrorKind, Failure, ProbeResult, without_measurement
from oomscope.probe.targets.harness import HarnessError
from oomscope.probe.targets.importing import uncollected
from oomscope.probe.targets.recipes import Recipe, load_recipe, world_of
from oomscope.snapshot.trace import Moment

if TYPE_CHECKING:
    from oomscope.probe.recording.session import Session

Stage = Literal["import", "setup", "step"]
Opener = Callable[[SessionSettings, RunsOn], "Session"]
Keep = Callable[[ProbeResult], None]
Begin = Callable[[SessionSettings, RunsOn, OnProgress], "ForkedRun[Ending] | RunHere[Ending]"]
"""Begins one run of a target."""


def measure(
    job: ProbeJob,
    *,
    progress: OnProgress,
    keep: Keep,
    opener: Opener = open_session,
    begin: Begin | None = None,
    folder: Path | None = None,
) -> ProbeResult:
    """Run ``job`` and return its result.

    Each run has a process of its own; where the first one ended badly, so does this one once its result is kept.

    Args:
        job: what to measure.
        progress: called at each step forward.
        keep: given a result that is whole but for the demand after an OOM, before that is measured.
        opener: makes the session of a backend.
        begin: begins a run; by default one in a process of this one's, under a session.
        folder: a folder for what the runs keep on disk, which is gone after the job; None: nothing is moved there.
    """
    begin = begin or partial(_begin, job, opener=opener, folder=folder)
    try:
        with uncollected():
            backend = resolve_backend(job)
        settings = settings_of(job, backend)
    except OomscopeError as error:
        failure = Failure(kind=kind_of_ours(error), message=str(error))
        return without_measurement(job, backend_of(job), failure)
    run = begin(settings, backend, progress)
    ending = run.value()
    if ending is None:
        end_as(run.wait())
    if ending.failure is not None or ending.measurement is None:
        return _after(run, without_measurement(job, backend, ending.failure), keep)
    progress(Progress(stage="analyse"))
    from oomscope.probe.analysis.analyse import analyse  # once there is something to analyse

    trusted = ending.measurement
    if is_doubtful(trusted):
        _after(run, without_measurement(job, backend, unchecked(job, trusted)), keep)
        repeated = partial(_run_again, begin, replace(settings, values="threes"), backend, progress, "values")
        doubt = doubt_of(job, trusted, repeated)
        if isinstance(doubt, Failure):
            return without_measurement(job, backend, doubt)
        trusted, run = replace(trusted, notes=(*trusted.notes, doubt)), RunHere(lambda: ending)
    measurement, snapshot = _saved(trusted, job)
    result = replace(analyse(job, backend, measurement, out_of_memory=ending.out_of_memory), snapshot=snapshot)
    is_refused = isinstance(ending.out_of_memory, FailedAllocation)
    emptied_its_cache = not ending.out_of_memory and measurement.stats.num_alloc_retries > 0
    if not (is_refused or emptied_its_cache):
        return _after(run, result, keep)
    asks_demand = backend == "virtual" and job.measure_demand
    _after(run, replace(result, demand_cut=asks_demand), keep)
    whole = _whole_run(begin, settings, backend, progress) if asks_demand else None
    if isinstance(whole, Measurement) and is_doubtful(whole):
        other = replace(settings, unlimited=True, values="threes")
        doubt = doubt_of(job, whole, partial(_run_again, begin, other, backend, progress, "values"))
        if isinstance(doubt, Failure):
            return replace(result, notes=(*result.notes, f"neither demand nor cure is known: {doubt.message}"))
    result, measurement = _with_demand(job, result, measurement, ending.out_of_memory, whole)
    from oomscope.probe.analysis.cures import is_wanted, with_cures

    if not (is_refused and is_wanted(job, backend, result.verdict)):
        return result
    keep(result)

    def again(conf: str) -> Ending | None:
        return _run_again(begin, replace(settings, allocator_conf=conf, is_recorded=False), backend, progress, "cures")

    return with_cures(job, result, measurement, again, lambda done: progress(Progress(stage="cures", done=done)))


def _with_demand(
    job: ProbeJob,
    result: ProbeResult,
    measurement: Measurement,
    out_of_memory: FailedAllocation | RefusedElsewhere | None,
    whole: Measurement | str | None,
) -> tuple[ProbeResult, Measurement]:
    """Return ``result`` and its ``measurement`` with what the ``whole`` run tells: a measurement, or why there is none.

    ``out_of_memory`` is what ended the run that is reported.
    """
    from oomscope.probe.analysis.analyse import analyse, demand_of, leak_of, peak_by_line

    if isinstance(whole, str):
        notes = (*result.notes, f"the demand of the whole run is unknown: {whole}")
        return replace(result, notes=notes), measurement
    if whole is None:
        return result, measurement
    if isinstance(out_of_memory, FailedAllocation):
        measurement = replace(measurement, demand_after=demand_of(whole), leak_after=leak_of(job, whole))
        judged = analyse(job, "virtual", measurement, out_of_memory=out_of_memory)  # where demand is measured
        result = replace(judged, snapshot=result.snapshot)
    return replace(result, demand_peak=peak_by_line(job, whole)), measurement


def _begin(
    job: ProbeJob,
    settings: SessionSettings,
    backend: RunsOn,
    progress: OnProgress,
    *,
    opener: Opener,
    folder: Path | None,
) -> ForkedRun[Ending] | RunHere[Ending]:
    """Begin one run of the target, in a process of its own."""

    def run() -> Ending:
        if settings.allocator_conf:
            os.environ.update(allocator_variables(settings.allocator_conf))  # read when the allocator is first used
        if folder is not None and backend == "virtual":
            os.environ.update(compile_cache_variables(folder, os.environ))
        try:
            return run_once(job, settings, backend, progress=progress, opener=opener)
        except OomscopeError as error:  # the machine or a setting is at fault, not the target
            return not_run(error)

    return ForkedRun(run)


def _after(run: ForkedRun[Ending] | RunHere[Ending], result: ProbeResult, keep: Keep) -> ProbeResult:
    """Keep ``result`` and return it once the process of the run has ended; where it ends badly, end in the same way."""
    keep(result)  # the process may not end
    if isinstance(run, ForkedRun):
        status = run.wait()
        if status:
            end_as(status)
    return result


def _whole_run(begin: Begin, settings: SessionSettings, backend: RunsOn, progress: OnProgress) -> Measurement | str:
    """Return the measurement of the whole run on a card without a limit, or why there is none."""

    def told(step: Progress) -> None:
        progress(replace(step, stage="demand"))

    gc.collect()  # what the first run left in cycles, before as much is made again
    run = begin(replace(settings, unlimited=True), backend, told)
    ending, status = run.value(), run.wait()
    if ending is None:
        return f"its process ended with status {status}"
    if ending.failure is not None:
        return ending.failure.message
    if ending.measurement is None or ending.out_of_memory:
        return "memory ran out there too"
    return ending.measurement


def _run_again(
    begin: Begin, settings: SessionSettings, backend: RunsOn, progress: OnProgress, stage: str
) -> Ending | None:
    """Return how the whole run ends under other settings; None where its process ends without an answer."""
    run = begin(settings, backend, lambda step: progress(replace(step, stage=stage)))
    ending, status = run.value(), run.wait()
    return ending if status == 0 else None


def run_once(
    job: ProbeJob,
    settings: SessionSettings,
    backend: RunsOn,
    *,
    progress: OnProgress,
    opener: Opener,
) -> Ending:
    """Load, build and step the target once under a fresh session.

    Raises:
        OomscopeError: the session cannot be opened: the machine or a setting is at fault, not the target.
    """
    progress(Progress(stage="import"))
    with uncollected():  # before the target, which may use the card while it is imported
        session = opener(settings, backend)
    try:
        with uncollected():
            recipe = load_recipe(job)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the target raises is a result
        return Ending(measurement=None, failure=_failure_of(error, job, "import"))
    stopped = _run(recipe, session, job, backend, progress)
    return _ending(stopped, session)


def _run(recipe: Recipe, session: Session, job: ProbeJob, backend: RunsOn, progress: OnProgress) -> Stopped | None:
    """Build and step the target in the session; return what stopped it, None where it went through."""
    stage: Stage = "setup"
    moment = Moment("init", -1, -1)
    try:
        with world_of(job):
            recipe.make_groups()
            with session:
                progress(Progress(stage=stage))
                seed_everything(job.seed)
                target = recipe.build(session)
                stage = "step"
                for iteration in range(job.iterations):
                    moment = Moment("", iteration, -1)
                    progress(Progress(stage=stage, done=iteration, total=job.iterations))
                    with session.iteration(iteration):
                        target.step()
        progress(Progress(stage=stage, done=job.iterations, total=job.iterations))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the target raises is a result
        return Stopped(refusal=refusal_in(error), moment=moment, failure=_failure_of(error, job, stage))
    return None


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (all devices)."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """What an exception of the target said; plain data, so that no frame of the target is kept alive."""

    refusal: Refusal | None
    """Who refused memory, where that is what happened."""
    moment: Moment
    failure: Failure
    """What it is where memory did not run out."""


def _ending(stopped: Stopped | None, session: Session) -> Ending:
    """Tell a run that went through from an OOM and from a failure of the target."""
    if stopped is None:
        return Ending(measurement=session.measurement())
    if stopped.refusal is None:
        return Ending(measurement=None, failure=stopped.failure)
    measurement = session.measurement()
    if stopped.refusal.failed_in == "device" and measurement.oom is not None:
        message = measurement.oom.message or stopped.refusal.message
        return Ending(measurement=measurement, out_of_memory=replace(measurement.oom, message=message))
    return Ending(measurement=measurement, out_of_memory=_refused_elsewhere(stopped.refusal, stopped.moment))


def _refused_elsewhere(refusal: Refusal, moment: Moment) -> RefusedElsewhere:
    """Return a refusal that the measured allocator knows nothing of, even where it is worded as one of its own."""
    return RefusedElsewhere(
        failed_in="program" if refusal.failed_in == "device" else refusal.failed_in,
        message=refusal.message,
        requested_bytes=refusal.requested_bytes,
        moment=moment,
        stack=refusal.stack,
    )


def _failure_of(error: Exception | SystemExit, job: ProbeJob, stage: Stage) -> Failure:
    reason = untestable_reason(error)
    if reason is not None:
        kind: ErrorKind = "nothing" if isinstance(error, NothingOnDeviceError) else "untestable"
        return Failure(kind=kind, message=reason, detail=details(error))
    if isinstance(error, OomscopeError):
        return Failure(kind=_kind_of_theirs(error, stage), message=str(error))
    target = job.target
    roots = (target.repo, *target.outside) if isinstance(target, CheckoutTarget) else ()
    return Failure(kind=stage, message=describe(error, roots=roots), detail=details(error))


def _kind_of_theirs(error: OomscopeError, stage: Stage) -> ErrorKind:
    """Return the kind of a failure in terms of oomscope that came out of the target, or of loading it."""
    if isinstance(error, HarnessError):
        return "usage"
    if isinstance(error, MachineUnfitError):
        return "unfit"
    return "untestable" if isinstance(error, (InputError, UsageError)) else stage


def _saved(measurement: Measurement, job: ProbeJob) -> tuple[Measurement, str | None]:
    """Write the snapshot where one is wanted; that it could not be written is a note, the measurement stands."""
    if job.snapshot_path is None:
        return measurement, None
    from oomscope.probe.analysis.analyse import origin_of
    from oomscope.snapshot.write import write_snapshot

    told = replace(measurement.snapshot, provenance=origin_of(measurement, job))
    try:
        return measurement, str(write_snapshot(told, job.snapshot_path, force=job.snapshot_force))
    except SnapshotError as error:
        return replace(measurement, notes=(*measurement.notes, f"no snapshot: {error}")), None
