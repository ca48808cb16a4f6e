"""From what a backend recorded to the result: peak, phases, categories, lines, the failure, the verdict.

Everything is derived from the :class:`~oomscope.probe.measurement.Measurement`, by the same code for both backends. The
snapshot that is written says of itself which rank, card and allocator it shows (:func:`origin_of`); time and machine
are left out, so that two runs of one job write equal files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from oomscope.errors import AllocatorConfError
from oomscope.probe.analysis.sites import site_rule
from oomscope.probe.job import BundledTarget, ProbeJob, RunsOn
from oomscope.probe.machine.fingerprint import installed_torch, versions
from oomscope.probe.measurement import FailedAllocation, Measurement, OutOfMemory, RefusedElsewhere
from oomscope.probe.result import (
    Oom,
    Peak,
    PhaseBytes,
    ProbeResult,
    ReservedPeak,
    RunCurves,
    StepPeak,
    SurvivedFailures,
)
from oomscope.snapshot.accounting.attribution import SiteOf, by_category, by_site, by_stack, column_of, moments_shown
from oomscope.snapshot.accounting.timeline import Timeline, decimate
from oomscope.snapshot.judge.leaks import MIN_ITERATIONS, find_leak, undecided_growth
from oomscope.snapshot.judge.verdict import FailedElsewhere, FailedRequest, judge
from oomscope.snapshot.provenance import Card, Provenance
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.replay.replay import Device
from oomscope.snapshot.replay.segment_map import segments_after
from oomscope.snapshot.trace import Action, Category, Trace
from oomscope.snapshot.verdict_types import LeakSuspect, Verdict
from oomscope.units import format_size
from oomscope.virtual.extensions import own_runtimes

RULES: Final = "allocator_rules"
"""The key of ``Measurement.versions`` that names the torch whose allocator rules fit a recording of unknown origin."""


def analyse(
    job: ProbeJob, backend: RunsOn, measurement: Measurement, *, out_of_memory: OutOfMemory | None
) -> ProbeResult:
    """Return the result of ``job``, but for where its snapshot was written.

    ``out_of_memory`` ended the target; a failed allocation that it survived is only a note.
    """
    timeline = measurement.timeline
    budget, stats = measurement.device, measurement.stats
    step_time_s = min(measurement.step_times_s, default=None)
    flops, cost = _estimates(job)
    verdict = _verdict_of(job, measurement, out_of_memory)
    whole_iterations = job.iterations if measurement.iterations is None else measurement.iterations
    return ProbeResult(
        backend=backend,
        outcome="oom" if out_of_memory else "fits",
        rank=job.rank if measurement.rank is None else measurement.rank,
        world_size=measurement.world_size or job.world_size,
        ranks=measurement.ranks,
        pipeline_stages=_pipeline_stages(job),
        gpu=budget.gpu,
        limit_bytes=budget.limit_bytes,
        non_torch_bytes=budget.non_torch_bytes,
        other_process_bytes=budget.other_process_bytes,
        available_bytes=budget.available_bytes,
        peak=peak_of(job, measurement, out_of_memory),
        reserved_peak=reserved_peak_of(timeline, rules_of(measurement)) if len(timeline.trace) else None,
        end_requested_bytes=stats.requested_bytes_current,
        end_allocated_bytes=stats.allocated_bytes_current,
        phases=phases_of(timeline),
        oom=_oom_of(job, out_of_memory, timeline) if out_of_memory else None,
        verdict=verdict,
        survived=survived_in(measurement, out_of_memory),
        demand_bytes=measurement.demand_after,
        iterations=None if out_of_memory else whole_iterations,
        unstepped=measurement.unstepped,
        events=len(measurement.trace),
        unknown_reads=measurement.unanswered.reads,
        truncated=measurement.truncated,
        timeline=decimate(timeline.requested),
        curves=RunCurves.of(timeline),
        pinned_bytes=measurement.pinned_bytes,
        flops=flops,
        cost=cost,
        step_time_s=step_time_s,
        tflops_per_s=flops["model"] / step_time_s / 1e12 if step_time_s and "model" in flops else None,
        num_alloc_retries=stats.num_alloc_retries,
        segments=len(measurement.snapshot.segments),
        allocator_conf=measurement.allocator_conf,
        versions=versions() | measurement.versions,
        notes=(*measurement.notes, *_notes(job, measurement, out_of_memory, verdict, whole_iterations)),
    )


def phases_of(timeline: Timeline) -> tuple[PhaseBytes, ...]:
    """Return the largest bytes of each phase of each iteration."""
    return tuple(
        PhaseBytes(
            iteration=row.iteration,
            phase=row.phase or "unknown",
            requested_bytes=row.requested_bytes,
            reserved_bytes=row.reserved_bytes,
        )
        for row in timeline.phase_peaks()
    )


def peak_of(job: ProbeJob, measurement: Measurement, failed: OutOfMemory | None = None) -> Peak | None:
    """Return the largest amount of requested bytes and what was requested then; None where nothing was recorded.

    The stacks of ``failed``, which ended the run, are shown beside those of the peak.
    """
    timeline, rule, stats = measurement.timeline, site_rule(job), measurement.stats
    if not len(timeline.trace):
        return None
    event = timeline.peak_event()
    return Peak(
        requested_bytes=timeline.requested_bytes_at(event),
        allocated_bytes=stats.allocated_bytes_peak,
        active_bytes=stats.active_bytes_peak,
        reserved_bytes=stats.reserved_bytes_peak,
        **place_of(timeline.trace, event, rule.site_of),
        event=event,
        categories=by_category(timeline, event),
        sites=by_site(timeline, event, rule.group_of),
        stacks=by_stack(
            timeline,
            moments_shown(timeline, failed_event=failed_event_of(failed)),
            choose=rule.frame_of,
            name=rule.name_of,
        ),
    )


def step_peak_of(job: ProbeJob, measurement: Measurement) -> StepPeak | None:
    """Return the largest amount of requested bytes in a step of an optimizer; None where there was no step."""
    if measurement.iterations == 0:
        return None
    timeline, rule = measurement.timeline, site_rule(job)
    steps = (row for row in timeline.phase_peaks() if row.phase == "optimizer")
    highest = max(steps, key=lambda row: row.requested_bytes, default=None)
    if highest is None:
        return None
    rows = timeline.requested_at(highest.event)
    temporary = rows[column_of(timeline, rows, timeline.trace.category) == Category.TEMPORARY]
    moment = {"in the optimizer's step": temporary}
    return StepPeak(
        requested_bytes=highest.requested_bytes,
        iteration=highest.iteration,
        event=highest.event,
        categories=by_category(timeline, highest.event, rows),
        temporaries=by_stack(timeline, moment, choose=rule.frame_of, name=rule.name_of),
    )


def failed_event_of(failed: OutOfMemory | None) -> int | None:
    """Return the event of the failed allocation; None where none is known."""
    return failed.event if isinstance(failed, FailedAllocation) else None


def reserved_peak_of(timeline: Timeline, rules: Rules | None = None) -> ReservedPeak:
    """Return the most that the allocator held, and the moment of its overhead.

    Without ``rules``, those of the allocator, the largest unused block is unknown.
    """
    highest = timeline.reserved_peak()
    return ReservedPeak(
        reserved_bytes=highest.reserved_bytes,
        requested_bytes=highest.requested_bytes,
        reserved_then_bytes=highest.reserved_then_bytes,
        **timeline.trace.moment_of(highest.event)._asdict(),
        event=highest.event,
        largest_free_bytes=None if rules is None else _largest_free_block(timeline, highest.event, rules),
    )


def place_of(trace: Trace, event: int, choose: SiteOf) -> dict[str, Any]:
    """Return iteration, phase, microbatch and site of ``event``; all unknown before the first one.

    The site of an event in backward is the forward line that caused it, where that is known.
    """
    site = None
    if event >= 0:
        stack = trace.attributed_stack(event)
        site = choose(stack, trace.modules[trace.module_id[event]])
    return {**trace.moment_of(event)._asdict(), "site": site}


def demand_of(measurement: Measurement) -> int:
    """Return the most bytes that the program held at once: what waits for a stream, an allocator in need waits for."""
    return measurement.timeline.most_held_bytes


def leak_of(job: ProbeJob, measurement: Measurement) -> LeakSuspect | None:
    """Return what grows from iteration to iteration in ``measurement``, without judging it."""
    return find_leak(measurement.timeline, site_rule(job).site_of, ends_whole=True)


def rules_of(measurement: Measurement) -> Rules:
    """Return whose allocator served ``measurement``."""
    return Rules(conf=measurement.allocator_conf, torch_version=measurement.versions.get(RULES) or installed_torch())


def _oom_of(job: ProbeJob, failed: OutOfMemory, timeline: Timeline) -> Oom:
    """Return what ended the run as it is reported."""
    rule = site_rule(job)
    event = failed_event_of(failed)
    recorded = None if event is None else place_of(timeline.trace, event, rule.site_of)["site"]
    last = len(timeline.trace) - 1 if event is None else event
    return Oom(
        requested_bytes=failed.requested_bytes,
        **failed.moment._asdict(),
        site=recorded or rule.site_of(failed.stack),
        message=" ".join(failed.message.split()),
        event=event,
        sites=by_site(timeline, last, rule.group_of) if last >= 0 else (),
    )


def _verdict_of(job: ProbeJob, measurement: Measurement, failed: OutOfMemory | None) -> Verdict:
    """Return why the run failed, or what room it has: the same rules for a probe and for any snapshot file."""
    budget, trace = measurement.device, measurement.trace
    failure: FailedRequest | FailedElsewhere | None = None
    if isinstance(failed, RefusedElsewhere):
        failure = FailedElsewhere(
            failed_in=failed.failed_in, message=failed.message, requested_bytes=failed.requested_bytes
        )
    elif failed is not None:
        wanted = request_as_seen(rules_of(measurement).settings(), failed.requested_bytes, 0)
        failure = FailedRequest(
            requested_bytes=failed.requested_bytes,
            event=failed.event,
            stream=int(trace.stream[failed.event]) if failed.event is not None else 0,
            segments=failed.segments,
            by_fraction=budget.own_fraction is not None and (failed.device_free_bytes or 0) >= wanted.taken_from_driver,
        )
    return judge(
        measurement.timeline,
        Device(
            total_bytes=budget.card_bytes or budget.limit_bytes,
            non_torch_bytes=budget.non_torch_bytes,
            other_process_bytes=budget.other_process_bytes,
            fraction=budget.fraction,
        ),
        rules=rules_of(measurement),
        failure=failure,
        demand_after=measurement.demand_after,
        leak_after=measurement.leak_after,
        ends_whole=True,
        may_leak=not measurement.stops_growing,
        choose=site_rule(job).site_of,
    )


def _pipeline_stages(job: ProbeJob) -> int | None:
    if not isinstance(job.target, BundledTarget):
        return None
    stages: int = job.target.config["parallel"]["pipeline_model_parallel_size"]
    return stages


def survived_in(measurement: Measurement, out_of_memory: OutOfMemory | None) -> SurvivedFailures | None:
    """Return the failed allocations that the target survived, and what it holds afterwards; None where there are none.

    What a failed attempt holds is freed, and what is cached handed back, before the target allocates again.
    """
    survived = measurement.stats.num_ooms - isinstance(out_of_memory, FailedAllocation)
    if survived <= 0:
        return None
    trace, reserved = measurement.trace, None
    failed, made = (np.flatnonzero(trace.action == action) for action in (Action.OOM, Action.ALLOC))
    later = made[made > failed[-1]] if len(failed) else made[:0]
    if any(trace.moments[moment].phase == "optimizer" for moment in np.unique(trace.moment_id[later])):
        reserved = int(measurement.timeline.reserved[later[0] :].max())
    return SurvivedFailures(count=survived, reserved_bytes=reserved)


def _estimates(job: ProbeJob) -> tuple[dict[str, int], dict[str, float]]:
    """Return the floating-point operations of a step of the bundled transformer, and what it is estimated to take."""
    if not isinstance(job.target, BundledTarget):
        return {}, {}
    from oomscope.config.schema import Config
    from oomscope.model.cost.step_time import step_cost
    from oomscope.model.cost.work import iteration_flops

    config = Config.model_validate(job.target.config)
    cost = step_cost(config, rank=job.rank)
    return iteration_flops(config, rank=job.rank), {} if cost is None else cost.to_json()


def _notes(
    job: ProbeJob,
    measurement: Measurement,
    out_of_memory: OutOfMemory | None,
    verdict: Verdict,
    whole_iterations: int,
) -> Iterator[str]:
    budget, unanswered = measurement.device, measurement.unanswered
    if budget.own_fraction is not None:
        left, total = format_size(budget.available_bytes), format_size(budget.limit_bytes)
        yield (
            f"the program set a memory fraction of {budget.own_fraction:g}: its allocator may hold {left} of {total}"
        )
    if unanswered.unsupported:
        yield f"called, but not supported by the virtual card: {', '.join(unanswered.unsupported)}"
    yield from own_runtimes(unanswered.unsupported)
    if unanswered.unknown_workspaces:
        names = ", ".join(unanswered.unknown_workspaces)
        yield f"workspaces whose size only NVIDIA's libraries know, estimated or left out: {names}"
    if survived := survived_in(measurement, out_of_memory):
        times = "once" if survived.count == 1 else f"{survived.count} times"
        yield f"an allocation failed {times}; the target continued{_largest_failed(job, measurement, survived.count)}"
    if verdict.leak is not None and measurement.growing:
        yield f"kept more tensors after each iteration: {', '.join(measurement.growing)}"
    is_undecided = verdict.leak is None and whole_iterations >= MIN_ITERATIONS - 1
    if is_undecided and (grown := undecided_growth(measurement.timeline)):
        yield f"requested memory grew {format_size(grown)} in the second iteration: a leak shows with --iterations 4"


def _largest_failed(job: ProbeJob, measurement: Measurement, survived: int) -> str:
    """Return what the largest of the ``survived`` requests asked for, and where; empty where not all are recorded."""
    trace = measurement.trace
    failed = np.flatnonzero(trace.action == Action.OOM)
    if measurement.oom is not None and len(failed) > survived:
        failed = failed[failed != measurement.oom.event]
    if len(failed) != survived:
        return ""
    event = int(failed[np.argmax(trace.size[failed])])
    site = place_of(trace, event, site_rule(job).site_of)["site"]
    which = "it" if survived == 1 else "the largest"
    return f"; {which} asked for {format_size(int(trace.size[event]))}" + (f", at {site.brief}" if site else "")


def _largest_free_block(timeline: Timeline, event: int, rules: Rules) -> int | None:
    """Return the bytes of the largest unused block right after ``event``, 0 for none; None where it cannot be known."""
    try:
        here = segments_after(timeline, event, rules.settings())
    except AllocatorConfError:  # settings that this emulator has no rules for
        return None
    if not here.is_known:
        return None
    blocks = (block for segment in here.segments for block in segment.blocks)
    return max((block.size for block in blocks if block.state == "inactive"), default=0)


def origin_of(measurement: Measurement, job: ProbeJob) -> Provenance:
    """Return the provenance of ``measurement.snapshot``, as it stood when the run ended."""
    budget, segments = measurement.device, measurement.snapshot.segments
    total = budget.card_bytes or budget.limit_bytes
    index = measurement.trace.device
    held = sum(segment.total_size for segment in segments if segment.device == index)
    card = Card(
        index=index,
        name=budget.gpu,
        total_bytes=total,
        free_bytes=max(0, total - budget.non_torch_bytes - budget.other_process_bytes - held),
        memory_fraction=budget.fraction or 1.0,
    )
    return Provenance(
        reason="end",
        rank=job.rank,
        world_size=job.world_size,
        torch_version=installed_torch(),
        max_entries=job.max_entries,
        stacks="python",
        cards=(card,),
    )
