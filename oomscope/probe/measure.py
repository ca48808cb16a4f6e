"""Runs a job's target under a session and says what came of it; the worker's whole work, in one process.

After an OOM on the simulated device the target is run once more on a card without a limit, which tells what the
whole run would have needed; also after a run that fits only because the allocator emptied its cache, which tells what
it would hold otherwise. The first result is handed over before that, so a failure of the second run costs only this
number.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from oomscope.errors import (
    InputError,
    MachineUnfitError,
    NothingOnDeviceError,
    OomscopeError,
    SnapshotError,
    UsageError,
)
from oomscope.probe.collector import uncollected
from oomscope.probe.failures import Refusal, describe, details, refusal_in, untestable_reason
from oomscope.probe.harness import HarnessError
from oomscope.probe.job import CheckoutTarget, ProbeJob, Progress
from oomscope.probe.measurement import FailedAllocation, Measurement, RefusedElsewhere
from oomscope.probe.recipes import Recipe, load_recipe, world_of
from oomscope.probe.result import ErrorKind, Failure, ProbeResult
from oomscope.probe.session import Session, SessionSettings
from oomscope.probe.sessions import open_session, resolve_backend, settings_of
from oomscope.snapshot.trace import Moment

Stage = Literal["import", "setup", "step"]
Opener = Callable[[SessionSettings, Literal["sim", "cuda"]], Session]
OnProgress = Callable[[Progress], None]
Keep = Callable[[ProbeResult], None]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run of a target ended."""

    measurement: Measurement | None
    out_of_memory: FailedAllocation | RefusedElsewhere | None = None
    """What ended the target for want of memory, where that is why it ended."""
    failure: Failure | None = None


def measure(job: ProbeJob, *, progress: OnProgress, keep: Keep, opener: Opener = open_session) -> ProbeResult:
    """Run ``job`` in this process and return its result.

    Args:
        job: what to measure.
        progress: called at each step forward.
        keep: given a result that is whole but for the demand after an OOM, before that is measured.
        opener: makes the session of a backend.
    """
    try:
        with uncollected():
            backend = resolve_backend(job)
        settings = settings_of(job, backend)
        ending = run_once(job, settings, backend, progress=progress, opener=opener)
    except OomscopeError as error:
        failure = Failure(kind=_kind_of_ours(error), message=str(error))
        return _without_measurement(job, "cuda" if job.backend == "cuda" else "sim", failure)
    if ending.failure is not None or ending.measurement is None:
        return _without_measurement(job, backend, ending.failure)
    progress(Progress(stage="analyse"))
    from oomscope.probe.analyse import analyse, leak_of, peak_by_line  # once there is something to analyse

    measurement, snapshot = _saved(ending.measurement, job)
    result = replace(analyse(job, backend, measurement, out_of_memory=ending.out_of_memory), snapshot=snapshot)
    refused_by_allocator = isinstance(ending.out_of_memory, FailedAllocation)
    emptied_its_cache = not ending.out_of_memory and measurement.stats.num_alloc_retries > 0
    if not ((refused_by_allocator or emptied_its_cache) and backend == "sim" and job.measure_demand):
        return result
    keep(replace(result, demand_cut=True))
    whole = _whole_run(job, settings, backend, progress=progress, opener=opener)
    if isinstance(whole, str):
        return replace(result, notes=(*result.notes, f"the demand of the whole run is unknown: {whole}"))
    peak = peak_by_line(job, whole)
    if emptied_its_cache:
        return replace(result, demand_peak=peak)
    # Not the allocator's own counter, which keeps a freed block until every stream that used it is done with it.
    demand = peak.requested_bytes if peak else 0
    measurement = replace(measurement, demand_after=demand, leak_after=leak_of(job, whole))
    judged = analyse(job, backend, measurement, out_of_memory=ending.out_of_memory)
    return replace(judged, snapshot=snapshot, demand_peak=peak)


def _whole_run(
    job: ProbeJob,
    settings: SessionSettings,
    backend: Literal["sim", "cuda"],
    *,
    progress: OnProgress,
    opener: Opener,
) -> Measurement | str:
    """Return the measurement of the whole run on a card without a limit, or why there is none."""

    def told(step: Progress) -> None:
        progress(replace(step, stage="demand"))

    gc.collect()  # what the first run left in cycles, before as much is made again
    try:
        ending = run_once(job, replace(settings, unlimited=True), backend, progress=told, opener=opener)
    except OomscopeError as error:
        return str(error)
    if ending.failure is not None:
        return ending.failure.message
    if ending.measurement is None or ending.out_of_memory:
        return "memory ran out there too"
    return ending.measurement


def run_once(
    job: ProbeJob,
    settings: SessionSettings,
    backend: Literal["sim", "cuda"],
    *,
    progress: OnProgress,
    opener: Opener,
) -> Ending:
    """Load, build and step the target once under a fresh session.

    Raises:
        OomscopeError: the session cannot be opened: the machine or a setting is at fault, not the target.
    """
    progress(Progress(stage="import"))
    try:
        with uncollected():
            recipe = load_recipe(job)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the target raises is a result
        return Ending(measurement=None, failure=_failure_of(error, job, backend, "import"))
    with uncollected():
        session = opener(settings, backend)
    stopped = _run(recipe, session, job, backend, progress)
    return _ending(stopped, session)


def _run(
    recipe: Recipe, session: Session, job: ProbeJob, backend: Literal["sim", "cuda"], progress: OnProgress
) -> Stopped | None:
    """Build and step the target in the session; return what stopped it, None where it went through."""
    stage: Stage = "setup"
    moment = Moment("init", -1, -1)
    try:
        with world_of(job, session.device):
            recipe.place()
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
        return Stopped(refusal=refusal_in(error), moment=moment, failure=_failure_of(error, job, backend, stage))
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
        return Ending(measurement=measurement, out_of_memory=measurement.oom)
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


def _failure_of(error: Exception | SystemExit, job: ProbeJob, backend: Literal["sim", "cuda"], stage: Stage) -> Failure:
    reason = untestable_reason(error, backend)
    if reason is not None:
        kind: ErrorKind = "nothing" if isinstance(error, NothingOnDeviceError) else "untestable"
        return Failure(kind=kind, message=reason, detail=details(error))
    if isinstance(error, OomscopeError):
        return Failure(kind=_kind_of_theirs(error, stage), message=str(error))
    target = job.target
    roots = (target.repo, *target.outside) if isinstance(target, CheckoutTarget) else ()
    return Failure(kind=stage, message=describe(error, roots=roots), detail=details(error))


def _kind_of_ours(error: OomscopeError) -> ErrorKind:
    """Return the kind of a failure that oomscope itself found before anything of the target ran."""
    if isinstance(error, MachineUnfitError):
        return "unfit"
    return "usage" if isinstance(error, (InputError, UsageError)) else "setup"


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
    from oomscope.probe.origin import origin_of
    from oomscope.snapshot.write import write_snapshot

    told = replace(measurement.snapshot, provenance=origin_of(measurement, job))
    try:
        return measurement, str(write_snapshot(told, job.snapshot_path, force=job.snapshot_force))
    except SnapshotError as error:
        return replace(measurement, notes=(*measurement.notes, f"no snapshot: {error}")), None


def _without_measurement(job: ProbeJob, backend: Literal["sim", "cuda"], failure: Failure | None) -> ProbeResult:
    return ProbeResult(
        backend=backend,
        outcome="error",
        rank=job.rank,
        world_size=job.world_size,
        failure=failure,
    )
