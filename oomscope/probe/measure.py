"""Runs a job's target under a session and returns the result; the worker's whole work.

After an OOM the target is run once more on a card without a limit, where there can be one, which tells what the whole
run would have needed; also after a run that fits only because the allocator emptied its cache, which tells what it
would hold otherwise. After a failure by fragmentation it is run under the settings that may cure it, and where memory
grows from iteration to iteration for more of them. The result is handed over before each of these, so a failure there
costs no more than what it would have told.
"""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from oomscope.errors import (
    InputError,
    MachineUnfitError,
    NothingOnDeviceError,
    OomscopeError,
    SnapshotError,
    UsageError,
)
from oomscope.probe.analysis.failures import (
    describe,
    details,
    kind_of_own_error,
    not_run,
    out_of_memory_of,
    refusal_in,
    untestable_reason,
)
from oomscope.probe.analysis.value_dependence import agreement_note, checked_run, mismatch_failure, unchecked_failure
from oomscope.probe.job import CheckoutTarget, OnProgress, ProbeJob, Progress, RunsOn
from oomscope.probe.machine import children
from oomscope.probe.machine.backends import backend_of
from oomscope.probe.machine.environment import allocator_variables, compile_cache_variables
from oomscope.probe.machine.forked_run import ForkedRun, InlineRun, end_as
from oomscope.probe.measurement import Ending, FailedAllocation, Measurement, OutOfMemory
from oomscope.probe.recording.collector import gc_paused_import
from oomscope.probe.recording.settings import SessionSettings, open_session, resolve_backend, settings_of
from oomscope.probe.result import ErrorKind, Failure, ProbeResult, without_measurement
from oomscope.probe.targets.harness import HarnessError
from oomscope.probe.targets.recipes import load_recipe, world_of
from oomscope.snapshot.trace import Moment
from oomscope.units import format_size
from oomscope.virtual.settings import ValueRule

if TYPE_CHECKING:
    from oomscope.probe.recording.session import Session

Stage = Literal["import", "setup", "step"]
LONG_RUN: Final = 9
"""Iterations of the run that shows whether what grew in fewer is a leak."""
_DIED_LATER: Final = f"fewer iterations fit; a run of {LONG_RUN}, made because memory grew, ran out and is reported"
Begin = Callable[[SessionSettings, RunsOn, OnProgress], "ForkedRun[Ending] | InlineRun[Ending]"]
"""Begins one run of a target."""


def measure(
    job: ProbeJob,
    *,
    progress: OnProgress,
    keep: Callable[[ProbeResult], None],
    begin: Begin | None = None,
    folder: Path | None = None,
) -> ProbeResult:
    """Run ``job`` and return its result.

    Each run has a process of its own; where the first one ended badly, so does this one once its result is kept.

    Args:
        job: what to measure.
        progress: called at each step forward.
        keep: given a result that is whole but for the demand after an OOM, before that is measured.
        begin: begins a run; by default one in a process of this one's, under a session.
        folder: a folder for what the runs keep on disk, which is gone after the job; None: nothing is moved there.
    """
    begin = begin or partial(_begin, job, folder=folder)
    try:
        with gc_paused_import():
            backend = resolve_backend(job)
        settings = settings_of(job, backend)
    except OomscopeError as error:
        failure = Failure(kind=kind_of_own_error(error), message=str(error))
        return without_measurement(job, backend_of(job), failure)
    return _Runs(job=job, backend=backend, settings=settings, begin=begin, progress=progress, keep=keep).result()


@dataclass(kw_only=True)
class _Runs:
    """The runs of one job: the first one, and those that add to its result."""

    job: ProbeJob
    backend: RunsOn
    settings: SessionSettings
    """Settings of the first run."""
    begin: Begin
    progress: OnProgress
    keep: Callable[[ProbeResult], None]
    """Takes each result that is better than none."""

    def __post_init__(self) -> None:
        """Begin the first run."""
        self.check: ValueRule | None = "larger"
        self.value_notes: tuple[str, ...] = ()
        self.first = self.begin(self.settings, self.backend, self.progress)

    def result(self) -> ProbeResult:
        """Return what the first run shows, once it is known whether its values can be trusted."""
        ending = self.first.value()
        if ending is None:
            end_as(self.first.wait())
        measurement = ending.measurement
        if measurement is None:
            failed = self._kept(self._failed(ending.failure))
            return self._checked(ending) if ending.unanswered.reads else failed
        self.progress(Progress(stage="analyse"))
        if measurement.unanswered.reads:
            self._kept(self._failed(unchecked_failure(self.job, measurement)))
            return self._checked(ending)
        return self._explored(measurement, ending.out_of_memory)

    def _checked(self, first: Ending) -> ProbeResult:
        """Return the result after runs under other rules of values, where the ``first`` read unknown ones."""
        found = checked_run(self.job, first, self._under)
        if isinstance(found, Failure) or (measurement := found.ending.measurement) is None:
            return self._failed(found if isinstance(found, Failure) else None)
        is_first = found.values == self.settings.values
        self.settings = replace(self.settings, values=found.values, is_bounded=not is_first)
        self.check = found.check
        self.value_notes = (found.note,)
        return self._explored(_noted(measurement, *self.value_notes), found.ending.out_of_memory)

    def _explored(self, measurement: Measurement, out_of_memory: OutOfMemory | None) -> ProbeResult:
        """Return the result with the findings of runs without a limit and under other settings of the allocator."""
        from oomscope.probe.analysis.analyse import analyse  # once there is something to analyse
        from oomscope.probe.analysis.cures import is_wanted, with_cures

        if measurement.uses_cards > 1:
            self.settings = replace(self.settings, device=measurement.trace.device)
        measurement, snapshot = _saved(measurement, self.job)
        judged = analyse(self.job, self.backend, measurement, out_of_memory=out_of_memory)
        result = replace(judged, snapshot=snapshot)
        if not out_of_memory and self._may_leak(measurement):
            self.keep(result)
            longer_measured, out_of_memory = self._with_longer_run(measurement)
            if longer_measured is not measurement:
                if longer_measured.snapshot is not measurement.snapshot:
                    longer_measured, snapshot = _saved(longer_measured, self.job)
                measurement = longer_measured
                judged = analyse(self.job, self.backend, measurement, out_of_memory=out_of_memory)
            result = replace(judged, snapshot=snapshot)
        is_refused = isinstance(out_of_memory, FailedAllocation)
        emptied_its_cache = not out_of_memory and measurement.stats.num_alloc_retries > 0
        if not (is_refused or emptied_its_cache):
            return self._kept(result)
        asks_demand = self.backend == "virtual" and self.job.measure_demand
        self._kept(replace(result, demand_cut=asks_demand))
        if asks_demand:
            without_limit = {"unlimited": True, "rank": measurement.rank}  # without a failure, no rank stands out
            whole = self._whole_run(without_limit)
            doubt = self._rerun_mismatch(whole, **without_limit) if isinstance(whole, Measurement) else None
            if doubt is not None:
                return replace(result, notes=(*result.notes, f"neither demand nor cure is known: {doubt.message}"))
            result, measurement = self._with_demand(result, measurement, out_of_memory, whole)
        if not (is_refused and is_wanted(self.job, self.backend, result.verdict)):
            return result
        self.keep(result)

        def run_under(conf: str) -> Ending | None:
            ending, status = self._again("cures", allocator_conf=conf, is_recorded=False)
            return None if status else ending

        return with_cures(
            result, measurement, run_under, lambda done: self.progress(Progress(stage="cures", done=done))
        )

    def _failed(self, failure: Failure | None) -> ProbeResult:
        return without_measurement(self.job, self.backend, failure)

    def _kept(self, result: ProbeResult) -> ProbeResult:
        """Keep ``result``; where the process of the first run ends badly, end in the same way."""
        self.keep(result)  # the process may not end
        if status := self.first.wait():
            end_as(status)
        return result

    def _again(self, stage: str, **changes: Any) -> tuple[Ending | None, int]:
        """Return how the whole run ends under other settings, and the status of its process."""
        settings = replace(self.settings, **changes)
        run = self.begin(settings, self.backend, lambda step: self.progress(replace(step, stage=stage)))
        return run.value(), run.wait()

    def _under(self, values: ValueRule, **changes: Any) -> Ending | None:
        """Return how the whole run ends under another rule of values; None where its process was lost."""
        ending, status = self._again("values", values=values, is_bounded=True, **changes)
        return None if status else ending

    def _rerun_mismatch(self, measurement: Measurement, **changes: Any) -> Failure | None:
        """Return why a further run, made under ``changes``, cannot be reported."""
        if not measurement.unanswered.reads or self.check is None:
            return None
        return mismatch_failure(self.job, measurement, self._under(self.check, **changes))

    def _may_leak(self, measurement: Measurement) -> bool:
        """Whether a longer run can show whether what grows is a leak; on a real card another one takes its time."""
        from oomscope.snapshot.judge.leaks import grows

        return self.job.iterations < LONG_RUN and self.backend == "virtual" and grows(measurement.timeline)

    def _with_longer_run(self, measurement: Measurement) -> tuple[Measurement, OutOfMemory | None]:
        """Return ``measurement`` with what a longer run shows of memory that grows.

        A buffer fills and stays as large, a leak does not; which line leaks may need more iterations to be seen. Where
        the longer run runs out of memory, or needs more of it without a leak, its measurement is returned, and the lack
        of memory that ended it.
        """
        from oomscope.probe.analysis.analyse import leak_of
        from oomscope.snapshot.judge.leaks import piles_up

        ending, _ = self._again("leak", iterations=LONG_RUN)
        found, longer = leak_of(self.job, measurement), ending.measurement if ending is not None else None
        failed = ending.out_of_memory if ending is not None else None
        if (
            longer is None
            or (longer.truncated and failed is None)
            or self._rerun_mismatch(longer, iterations=LONG_RUN) is not None
        ):
            unknown = f"a run of {LONG_RUN} iterations, which separates a leak from a buffer that fills, has no result"
            return _noted(measurement, unknown) if found else measurement, None
        if failed is not None:
            return self._reported(longer, _DIED_LATER), failed
        if found is None and (leak := leak_of(self.job, longer)):
            seen = f"the leak was seen in a run of {LONG_RUN} iterations"
            return _noted(replace(measurement, leak_after=leak), seen), None
        if found and piles_up(longer.timeline):
            return measurement, None
        bounded = f"memory that grew in the first iterations stops growing in a run of {LONG_RUN}: it is no leak"
        notes = (bounded,) if found else ()
        if not _needs_more(longer, measurement):
            return _noted(replace(measurement, stops_growing=True), *notes), None
        made = longer.iterations or LONG_RUN
        needs_more = f"the run of {made} iterations is reported, since it needs more memory than the first one"
        return self._reported(replace(longer, iterations=made), *notes, needs_more), None

    def _reported(self, longer: Measurement, *notes: str) -> Measurement:
        """Return the measurement of the ``longer`` run as the one that is reported, and that further runs repeat."""
        self.settings = replace(self.settings, iterations=LONG_RUN)
        if longer.unanswered.reads and not self.value_notes:
            self.value_notes = (agreement_note(self.job, longer),)
        return _noted(longer, *self.value_notes, *notes)

    def _whole_run(self, without_limit: Mapping[str, Any]) -> Measurement | str:
        """Return the measurement of the run on a card without a limit, or why there is none."""
        gc.collect()  # what the first run left in cycles, before the second allocates as much
        ending, status = self._again("demand", **without_limit)
        if ending is None:
            return f"its process ended with status {status}"
        if ending.failure is not None:
            return ending.failure.message
        if ending.measurement is None or ending.out_of_memory:
            return "that run was out of memory too"
        return ending.measurement

    def _with_demand(
        self,
        result: ProbeResult,
        measurement: Measurement,
        out_of_memory: OutOfMemory | None,
        whole: Measurement | str,
    ) -> tuple[ProbeResult, Measurement]:
        """Return ``result`` and its ``measurement`` with what the ``whole`` run shows, or why there is none."""
        from oomscope.probe.analysis.analyse import (
            analyse,
            demand_of,
            leak_of,
            peak_of,
            step_peak_of,
        )
        from oomscope.probe.analysis.whole_run import told_by

        if isinstance(whole, str):
            notes = (*result.notes, f"the demand of the whole run is unknown: {whole}")
            return replace(result, notes=notes), measurement
        if isinstance(out_of_memory, FailedAllocation):
            leak = leak_of(self.job, whole)
            measurement = replace(
                measurement, demand_after=demand_of(whole), leak_after=leak, pinned_bytes=whole.pinned_bytes
            )
            (measurement, asked), snapshot = told_by(whole, measurement, out_of_memory), result.snapshot
            if snapshot is not None:
                measurement, snapshot = _saved(measurement, self.job)
            judged = analyse(self.job, self.backend, measurement, out_of_memory=asked)
            result = replace(judged, snapshot=snapshot)
        notes = (*result.notes, *_larger_rank_notes(whole))
        peak, step = peak_of(self.job, whole), step_peak_of(self.job, whole)
        return replace(result, demand_peak=peak, demand_step=step, notes=notes), measurement


def _larger_rank_notes(whole: Measurement) -> Iterator[str]:
    """Yield a note on the rank that needs most in the ``whole`` run, where that is another than the one reported.

    A rank that fails ends the others, so that the failed run does not tell which one that is.
    """
    needs = {row.rank: row.peak.requested_bytes for row in whole.ranks if row.peak}
    most = max(needs, key=lambda rank: (needs[rank], -rank), default=None)
    if most is not None and whole.rank in needs and needs[most] > needs[whole.rank]:
        size = format_size(needs[most])
        yield f"rank {most} needs more than this one, {size} in the run without a limit: --rank {most} reports it"


def _begin(
    job: ProbeJob,
    settings: SessionSettings,
    backend: RunsOn,
    progress: OnProgress,
    *,
    folder: Path | None,
) -> ForkedRun[Ending] | InlineRun[Ending]:
    """Begin one run of the target, in a process of its own."""

    def run() -> Ending:
        if settings.allocator_conf:
            os.environ.update(allocator_variables(settings.allocator_conf))  # read when the allocator is first used
        if folder is not None and backend == "virtual":
            os.environ.update(compile_cache_variables(folder, os.environ))
        if backend == "virtual":
            os.environ.update(children.variables(os.environ))
        try:
            progress(Progress(stage="import"))
            with gc_paused_import():  # before the target, which may use the card while it is imported
                session = open_session(settings, backend)
            whole = job if settings.iterations is None else replace(job, iterations=settings.iterations)
            return _run_once(whole, backend, session, progress)
        except OomscopeError as error:  # the machine or a setting is at fault, not the target
            return not_run(error)

    return ForkedRun(run)


def _run_once(job: ProbeJob, backend: RunsOn, session: Session, progress: OnProgress) -> Ending:
    """Load, build and step the target once under a fresh session."""
    stage: Stage = "import"
    moment = Moment("init", -1, -1)
    refusal = failure = None
    try:
        with world_of(job, backend):
            with gc_paused_import():
                recipe = load_recipe(job)
            stage = "setup"
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
        failure = _failure_of(error, job, stage)
        refusal = None if stage == "import" else refusal_in(error)
    if failure is not None and refusal is None:
        return Ending(measurement=None, failure=failure, unanswered=session.unanswered)
    measurement = session.measurement()
    if refusal is None:
        return Ending(measurement=measurement)
    return Ending(measurement=measurement, out_of_memory=out_of_memory_of(refusal, measurement, moment))


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (all devices)."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _failure_of(error: Exception | SystemExit, job: ProbeJob, stage: Stage) -> Failure:
    reason = untestable_reason(error)
    if reason is not None:
        kind: ErrorKind = "nothing" if isinstance(error, NothingOnDeviceError) else "untestable"
        return Failure(kind=kind, message=reason, detail=details(error))
    if isinstance(error, OomscopeError):
        return Failure(kind=_kind_of_target_error(error, stage), message=str(error))
    target = job.target
    roots = (target.repo, *target.outside) if isinstance(target, CheckoutTarget) else ()
    return Failure(kind=stage, message=describe(error, roots=roots), detail=details(error))


def _kind_of_target_error(error: OomscopeError, stage: Stage) -> ErrorKind:
    """Return the kind of a failure in terms of oomscope that came out of the target, or of loading it."""
    if isinstance(error, HarnessError):
        return "usage"
    if isinstance(error, MachineUnfitError):
        return "unfit"
    return "untestable" if isinstance(error, (InputError, UsageError)) else stage


def _noted(measurement: Measurement, *notes: str) -> Measurement:
    return replace(measurement, notes=(*measurement.notes, *notes))


def _needs_more(one: Measurement, other: Measurement) -> bool:
    """Whether the peak of ``one`` is higher than that of ``other``, in requested or in reserved bytes."""
    names = ("requested_bytes_peak", "reserved_bytes_peak")
    return any(getattr(one.stats, name) > getattr(other.stats, name) for name in names)


def _saved(measurement: Measurement, job: ProbeJob) -> tuple[Measurement, str | None]:
    """Write the snapshot where one is wanted; a failure to write it is a note, and the measurement is kept."""
    if job.snapshot_path is None:
        return measurement, None
    from oomscope.probe.analysis.analyse import origin_of
    from oomscope.snapshot.write import write_snapshot

    snapshot = replace(measurement.snapshot, provenance=origin_of(measurement, job))
    try:
        return measurement, str(write_snapshot(snapshot, job.snapshot_path, force=True))
    except SnapshotError as error:
        return replace(measurement, notes=(*measurement.notes, f"no snapshot: {error}")), None
