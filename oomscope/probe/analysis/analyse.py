"""From what a backend recorded to what a person is told: peak, phases, categories, lines, the failure, the verdict.

Everything is derived from the :class:`~oomscope.probe.measurement.Measurement`, by the same code for both backends. The
snapshot that is written says of itself which rank, card and allocator it shows (:func:`origin_of`); time and machine
are left out, so that two runs of one job write equal files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomscope.errors import AllocatorConfError
from oomscope.probe.analysis.sites import SiteRule, site_rule
from oomscope.probe.job import BundledTarget, ProbeJob, RunsOn
from oomscope.probe.machine.fingerprint import installed_torch, versions
from oomscope.probe.measurement import FailedAllocation, Measurement, RefusedElsewhere
from oomscope.probe.result import Oom, Peak, PhaseBytes, ProbeResult, ReservedPeak, RunCurves, Site
from oomscope.snapshot.attribution import by_category, by_site
from oomscope.snapshot.builder import UNKNOWN_MOMENT
from oomscope.snapshot.judge.leaks import undecided_growth
from oomscope.snapshot.judge.verdict import FailedElsewhere, FailedRequest, judge, leak_in
from oomscope.snapshot.provenance import Card, Provenance
from oomscope.snapshot.replay.fixes import Rules
from oomscope.snapshot.replay.replay import Device
from oomscope.snapshot.replay.segment_map import segments_after
from oomscope.snapshot.timeline import Timeline, decimate
from oomscope.snapshot.trace import Moment, Trace
from oomscope.snapshot.verdict_types import LeakSuspect, Verdict
from oomscope.units import format_size
from oomscope.virtual.extensions import own_runtimes

RULES: Final = "allocator_rules"
"""The key of ``Measurement.versions`` that names the torch whose allocator rules fit a recording of unknown origin."""


def analyse(
    job: ProbeJob,
    backend: RunsOn,
    measurement: Measurement,
    *,
    out_of_memory: FailedAllocation | RefusedElsewhere | None,
) -> ProbeResult:
    """Return the result of ``job``, but for where its snapshot was written.

    Args:
        job: what was asked.
        backend: where it ran.
        measurement: what was recorded.
        out_of_memory: what ended the target for want of memory, None where it went through; a failed allocation that
            it survived is only a note.
    """
    rule = site_rule(job)
    timeline = Timeline.of(measurement.trace, measurement.snapshot.segments)
    budget, stats = measurement.device, measurement.stats
    step_time_s = min(measurement.step_times_s, default=None)
    flops = flops_of(job)
    return ProbeResult(
        backend=backend,
        outcome="oom" if out_of_memory else "fits",
        rank=job.rank if measurement.rank is None else measurement.rank,
        world_size=measurement.world_size or job.world_size,
        ranks=measurement.ranks,
        gpu=budget.gpu,
        limit_bytes=budget.limit_bytes,
        non_torch_bytes=budget.non_torch_bytes,
        other_process_bytes=budget.other_process_bytes,
        available_bytes=budget.available_bytes,
        peak=peak_of(measurement, timeline, rule),
        reserved_peak=reserved_peak_of(timeline, rules_of(job, measurement)),
        end_requested_bytes=stats.requested_bytes_current,
        end_allocated_bytes=stats.allocated_bytes_current,
        end_reserved_bytes=stats.reserved_bytes_current,
        phases=phases_of(timeline),
        oom=oom_of(out_of_memory, measurement.trace, rule) if out_of_memory else None,
        verdict=verdict_of(job, measurement, out_of_memory, rule),
        demand_bytes=measurement.demand_after,
        events=len(measurement.trace),
        truncated=measurement.truncated,
        timeline=decimate(timeline.requested),
        curves=RunCurves.of(timeline),
        host_bytes=measurement.host_bytes,
        pinned_bytes=measurement.pinned_bytes,
        flops=flops,
        cost=cost_of(job),
        step_time_s=step_time_s,
        tflops_per_s=flops["model"] / step_time_s / 1e12 if step_time_s and "model" in flops else None,
        num_alloc_retries=stats.num_alloc_retries,
        segments=len(measurement.snapshot.segments),
        allocator_conf=measurement.allocator_conf,
        versions=versions() | measurement.versions,
        notes=(
            *measurement.notes,
            *_fraction(measurement),
            *_unanswered(measurement),
            *_survived(measurement, out_of_memory),
            *_undecided(timeline),
        ),
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


def peak_of(measurement: Measurement, timeline: Timeline, rule: SiteRule) -> Peak | None:
    """Return the largest amount of requested bytes and what was requested then; None where nothing was recorded."""
    if not len(timeline.trace):
        return None
    event = timeline.peak_event()
    stats, moment = measurement.stats, _moment_at(timeline.trace, event)
    return Peak(
        requested_bytes=timeline.requested_bytes_at(event),
        allocated_bytes=stats.allocated_bytes_peak,
        active_bytes=stats.active_bytes_peak,
        reserved_bytes=stats.reserved_bytes_peak,
        iteration=moment.iteration,
        phase=moment.phase,
        microbatch=moment.microbatch,
        site=site_at(timeline.trace, event, rule) if event >= 0 else None,
        event=event,
        categories=by_category(timeline, event),
        sites=by_site(timeline, event, rule.group_of),
    )


def reserved_peak_of(timeline: Timeline, rules: Rules) -> ReservedPeak | None:
    """Return the moment at which the allocator held most; None where nothing was recorded."""
    if not len(timeline.trace):
        return None
    highest = timeline.reserved_peak()
    moment = _moment_at(timeline.trace, highest.event)
    return ReservedPeak(
        reserved_bytes=highest.reserved_bytes,
        requested_bytes=highest.requested_bytes,
        iteration=moment.iteration,
        phase=moment.phase,
        microbatch=moment.microbatch,
        event=highest.event,
        largest_free_bytes=largest_free_block(timeline, highest.event, rules),
    )


def _moment_at(trace: Trace, event: int) -> Moment:
    """Return the moment of ``event``; before the first one it is unknown."""
    return trace.moments[trace.moment_id[event]] if event >= 0 else UNKNOWN_MOMENT


def site_at(trace: Trace, event: int, rule: SiteRule) -> Site | None:
    """Return the line behind ``event``: for one in backward the forward line that caused it, where that is known."""
    stack = trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]]
    return rule.site_of(stack, trace.modules[trace.module_id[event]])


def peak_by_line(job: ProbeJob, measurement: Measurement) -> Peak | None:
    """Return the peak of ``measurement`` alone, without judging it."""
    timeline = Timeline.of(measurement.trace, measurement.snapshot.segments)
    return peak_of(measurement, timeline, site_rule(job))


def demand_of(measurement: Measurement) -> int:
    """Return the most bytes that the program held at once: what waits for a stream, an allocator in need waits for."""
    timeline = Timeline.of(measurement.trace, measurement.snapshot.segments)
    return timeline.most_held_bytes


def leak_of(job: ProbeJob, measurement: Measurement) -> LeakSuspect | None:
    """Return what grows from iteration to iteration in ``measurement``, without judging it."""
    timeline = Timeline.of(measurement.trace, measurement.snapshot.segments)
    return leak_in(timeline, site_rule(job).site_of)


def oom_of(failed: FailedAllocation | RefusedElsewhere, trace: Trace, rule: SiteRule) -> Oom:
    """Return what ended the run as it is reported."""
    event = failed.event if isinstance(failed, FailedAllocation) else None
    recorded = site_at(trace, event, rule) if event is not None else None
    return Oom(
        requested_bytes=failed.requested_bytes,
        iteration=failed.moment.iteration,
        phase=failed.moment.phase,
        microbatch=failed.moment.microbatch,
        site=recorded or rule.site_of(failed.stack),
        message=" ".join(failed.message.split()),
        event=event,
    )


def verdict_of(
    job: ProbeJob,
    measurement: Measurement,
    out_of_memory: FailedAllocation | RefusedElsewhere | None,
    rule: SiteRule,
) -> Verdict:
    """Return why the run failed, or what room it has: the same rules for a probe and for anybody's snapshot file."""
    budget = measurement.device
    return judge(
        measurement.trace,
        Device(
            total_bytes=budget.card_bytes or budget.limit_bytes,
            non_torch_bytes=budget.non_torch_bytes,
            other_process_bytes=budget.other_process_bytes,
            fraction=budget.fraction,
        ),
        rules=rules_of(job, measurement),
        segments=measurement.snapshot.segments,
        failure=_failure(out_of_memory, measurement.trace),
        demand_after=measurement.demand_after,
        leak_after=measurement.leak_after,
        choose=rule.site_of,
    )


def rules_of(job: ProbeJob, measurement: Measurement) -> Rules:
    """Return whose allocator served ``measurement``."""
    return Rules(
        conf=measurement.allocator_conf,
        torch_version=measurement.versions.get(RULES) or installed_torch(),
    )


def _failure(
    failed: FailedAllocation | RefusedElsewhere | None, trace: Trace
) -> FailedRequest | FailedElsewhere | None:
    """Return what ended the run in the verdict's terms."""
    if isinstance(failed, RefusedElsewhere):
        return FailedElsewhere(
            failed_in=failed.failed_in, message=failed.message, requested_bytes=failed.requested_bytes
        )
    if failed is None:
        return None
    return FailedRequest(
        requested_bytes=failed.requested_bytes,
        event=failed.event,
        stream=int(trace.stream[failed.event]) if failed.event is not None else 0,
        segments=failed.segments,
    )


def flops_of(job: ProbeJob) -> dict[str, int]:
    """Return the floating-point operations of an iteration on the job's rank; empty for a harness."""
    if not isinstance(job.target, BundledTarget):
        return {}
    from oomscope.config.schema import Config
    from oomscope.model.cost.work import iteration_flops

    return iteration_flops(Config.model_validate(job.target.config), rank=job.rank)


def _unanswered(measurement: Measurement) -> Iterator[str]:
    unanswered = measurement.unanswered
    if unanswered.unsupported:
        yield f"called, and not supported by the virtual card: {', '.join(unanswered.unsupported)}"
    yield from own_runtimes(unanswered.unsupported)
    if unanswered.unknown_workspaces:
        names = ", ".join(unanswered.unknown_workspaces)
        yield f"workspaces that only NVIDIA's libraries know, estimated or left out: {names}"


def _fraction(measurement: Measurement) -> tuple[str, ...]:
    budget = measurement.device
    if budget.own_fraction is None:
        return ()
    left, total = format_size(budget.available_bytes), format_size(budget.limit_bytes)
    return (f"the program set a memory fraction of {budget.own_fraction:g}: its allocator may hold {left} of {total}",)


def _survived(measurement: Measurement, out_of_memory: FailedAllocation | RefusedElsewhere | None) -> tuple[str, ...]:
    failed = measurement.stats.num_ooms - isinstance(out_of_memory, FailedAllocation)
    if failed <= 0:
        return ()
    times = "once" if failed == 1 else f"{failed} times"
    return (f"an allocation failed {times} and the target went on",)


def _undecided(timeline: Timeline) -> Iterator[str]:
    if grown := undecided_growth(timeline):
        yield f"requested memory grew {format_size(grown)} in the second iteration: a leak shows with --iterations 4"


def cost_of(job: ProbeJob) -> dict[str, float]:
    """Return what a step of the bundled transformer is estimated to take; nothing where that is not known."""
    if not isinstance(job.target, BundledTarget):
        return {}
    from oomscope.config.schema import Config
    from oomscope.probe.machine.rates import estimated_cost

    cost = estimated_cost(Config.model_validate(job.target.config), rank=job.rank)
    return {} if cost is None else cost.to_json()


def largest_free_block(timeline: Timeline, event: int, rules: Rules) -> int | None:
    """Return the bytes of the largest unused block right after ``event``, 0 for none.

    Args:
        timeline: a run, with the segments as they stood at its end.
        event: index of the event.
        rules: whose allocator it was.

    Returns:
        None where segments and blocks at that moment cannot be known.
    """
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
    return Provenance(
        reason="end",
        rank=job.rank,
        world_size=job.world_size,
        torch_version=installed_torch(),
        max_entries=job.max_entries,
        stacks="python",
        cards=tuple(_card(measurement, trace.device) for trace in measurement.snapshot.traces),
    )


def _card(measurement: Measurement, index: int) -> Card:
    budget = measurement.device
    total = budget.card_bytes or budget.limit_bytes
    held = sum(segment.total_size for segment in measurement.snapshot.segments if segment.device == index)
    return Card(
        index=index,
        name=budget.gpu,
        total_bytes=total,
        free_bytes=max(0, total - budget.non_torch_bytes - budget.other_process_bytes - held),
        memory_fraction=budget.fraction or 1.0,
    )
