"""From the snapshot that a command wrote to the result of a probe: judged as ``oomscope explain`` judges the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oomscope.probe.analysis.analyse import RULES, phases_of
from oomscope.probe.analysis.sites import SiteRule, site_rule
from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.fingerprint import versions
from oomscope.probe.result import Oom, Peak, ProbeResult, ReservedPeak, RunCurves, Site
from oomscope.probe.targets.command.snapshots import Card, Found
from oomscope.snapshot.attribution import by_site
from oomscope.snapshot.explain.analysis import Analysis
from oomscope.snapshot.sites import site_of
from oomscope.snapshot.timeline import decimate
from oomscope.snapshot.trace import Stack
from oomscope.units import format_size

ChooseSite = Callable[[Stack, str], Site | None]

_SURVIVED = "the snapshot holds a failed allocation, but the command ended well: it is taken to have survived it"


def judged(job: ProbeJob, found: Found, *, card: Card | None, has_failed: bool) -> ProbeResult:
    """Return what the recording says of the run.

    Args:
        job: what was asked.
        found: the recording that speaks for the run.
        card: on which card it was asked again; None for what the file tells.
        has_failed: the command ended out of memory; else only a card that was named can have refused anything.
    """
    analysis = found.analysis
    predicted = analysis.cut_short is not None
    timeline, budget, recording = analysis.timeline, analysis.budget, analysis.recording
    choose = _chooser(site_rule(job))
    peak = peak_of(analysis, choose)
    is_oom = has_failed or predicted
    verdict = analysis.verdict
    survived = not is_oom and verdict.kind != "headroom"
    return ProbeResult(
        backend="command",
        outcome="oom" if is_oom else "fits",
        rank=job.rank,
        world_size=job.world_size,
        gpu=job.gpu,
        limit_bytes=card.limit_bytes if card else None,
        non_torch_bytes=card.non_torch_bytes if card else None,
        available_bytes=budget.available_bytes,
        peak=peak,
        reserved_peak=_reserved_peak_of(analysis),
        end_requested_bytes=timeline.requested_bytes_at(len(timeline.trace) - 1),
        phases=phases_of(timeline),
        oom=_oom_of(analysis, choose) if is_oom else None,
        verdict=None if survived else verdict,
        demand_bytes=peak.requested_bytes if predicted and peak else None,
        demand_peak=peak if predicted else None,
        events=len(timeline.trace),
        truncated="start" in timeline.trace.missing,
        timeline=decimate(timeline.requested),
        curves=RunCurves.of(timeline),
        segments=len(analysis.snapshot.segments),
        allocator_conf=recording.rules.conf,
        versions=versions() | {RULES: recording.rules.torch_version},
        notes=(_source(found, predicted=predicted), *((_SURVIVED,) if survived else ())),
    )


def peak_of(analysis: Analysis, choose: ChooseSite) -> Peak | None:
    """Return the largest amount of requested bytes and what was live then; None where the recording shows nothing."""
    timeline, event = analysis.timeline, analysis.timeline.peak_event()
    live, here = timeline.requested_bytes_at(event), analysis.at_peak
    if not live and event < 0:
        return None
    sites = by_site(timeline, event, choose, categories=analysis.evidence.category)
    categories: dict[str, int] = {}
    for row in sites:
        categories[row.category] = categories.get(row.category, 0) + row.bytes
    iteration, phase, microbatch, site = _moment_at(analysis, event, choose)
    return Peak(
        requested_bytes=live,
        allocated_bytes=here.allocated_bytes if here.is_known else live,
        active_bytes=here.active_bytes if here.is_known else live,
        reserved_bytes=timeline.reserved_peak().reserved_bytes,
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        site=site,
        event=event,
        categories=dict(sorted(categories.items(), key=lambda item: -item[1])),
        sites=sites,
    )


def _reserved_peak_of(analysis: Analysis) -> ReservedPeak:
    highest = analysis.timeline.reserved_peak()
    iteration, phase, microbatch, _ = _moment_at(analysis, highest.event, site_of)
    return ReservedPeak(
        reserved_bytes=highest.reserved_bytes,
        requested_bytes=highest.requested_bytes,
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        event=highest.event,
    )


def _oom_of(analysis: Analysis, choose: ChooseSite) -> Oom:
    """Return the request that was refused, recorded or on the card that was named."""
    event, verdict = analysis.failure_event, analysis.verdict
    iteration, phase, microbatch, site = _moment_at(analysis, -1 if event is None else event, choose)
    return Oom(
        requested_bytes=verdict.requested_bytes,
        iteration=iteration,
        phase=phase,
        microbatch=microbatch,
        site=site,
        message=verdict.headline,
        event=event,
    )


def _moment_at(analysis: Analysis, event: int, choose: ChooseSite) -> tuple[int, str, int, Site | None]:
    """Return iteration, phase, microbatch and line of ``event``; all unknown before the first."""
    trace = analysis.timeline.trace
    if event < 0:
        return -1, "", -1, None
    moment = trace.moments[trace.moment_id[event]]
    stack = trace.stacks[trace.forward_stack_id[event] or trace.stack_id[event]]
    return moment.iteration, moment.phase, moment.microbatch, choose(stack, trace.modules[trace.module_id[event]])


def _chooser(rule: SiteRule) -> ChooseSite:
    """Return what chooses a line: the checkout's innermost one, else as for a file from anywhere."""

    def choose(stack: Stack, module: str = "") -> Site | None:
        own = rule.preferred_frame(stack)
        site = site_of(stack if own is None else (own,), module)
        return site and replace(site, file=rule.name_of(site.file) if Path(site.file).is_absolute() else site.file)

    return choose


def _source(found: Found, *, predicted: bool) -> str:
    among = f", the worst of {found.files} that were written" if found.files > 1 else ""
    text = f"judged by the snapshot {found.file}{among}"
    if not predicted:
        return text
    limit = format_size(found.analysis.limit or 0)
    return f"{text}; the run itself did not fail: its allocations were asked for again on a card of {limit}"
