"""The memory snapshots that a command wrote: which of them is reported for the run, and what it shows.

A checkout may hold older files of the same names. Of several new ones (a rank each, say) the worst is reported: one
with a failed allocation before one without, then the one with most requested bytes. It is judged as ``oomscope
explain`` judges the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oomscope.errors import InputError
from oomscope.probe.analysis.analyse import RULES, phases_of, place_of, reserved_peak_of
from oomscope.probe.analysis.sites import SiteRule, site_rule
from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.fingerprint import versions
from oomscope.probe.result import Oom, Peak, ProbeResult, RunCurves, Site
from oomscope.snapshot.accounting.attribution import SiteOf, by_site, by_stack, moments_shown
from oomscope.snapshot.accounting.timeline import decimate
from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.judge.verdict import failure_of
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.sites import site_of, user_frame
from oomscope.snapshot.trace import Stack
from oomscope.units import format_size
from oomscope.virtual.cards import card_bytes

_SURVIVED = "the snapshot holds a failed allocation, but the command ended well: it is taken to have survived it"


def stamps_of(repo: Path, pattern: str | None) -> dict[Path, tuple[int, ...]]:
    """Return the files below ``repo`` that ``pattern`` names, with a stamp by which one written anew is recognised."""
    found: dict[Path, tuple[int, ...]] = {}
    for path in repo.glob(pattern) if pattern is not None else ():
        if path.is_file():
            status = path.stat()
            found[path] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def written_since(repo: Path, pattern: str, before: Mapping[Path, tuple[int, ...]]) -> list[Path]:
    """Return those files that are new, or others than ``before``, which :func:`stamps_of` returned then."""
    return sorted(path for path, stamp in stamps_of(repo, pattern).items() if before.get(path) != stamp)


def judged(job: ProbeJob, files: Sequence[Path], repo: Path, *, has_failed: bool) -> ProbeResult | None:
    """Return what ``files`` say of a run; None where they show nothing, or the command failed over something else.

    Args:
        job: what was asked. A run that went through is asked again on the card that it names.
        files: the snapshots, below ``repo``.
        repo: the checkout.
        has_failed: whether the command failed; it did so on its own card.

    Raises:
        SnapshotError, AllocatorConfError: what a command wrote that ended well cannot be used.
    """
    limit = None if has_failed else card_bytes(job.limit_bytes, job.gpu)
    non_torch = 0 if limit is None else job.non_torch_bytes + job.other_process_bytes
    try:
        found = _worst_of(files, repo, limit, non_torch)
    except InputError:
        if has_failed:  # it may have ended in the middle of a file
            return None
        raise
    if found is None or (has_failed and not _has_oom(found[0])):
        return None
    analysis, file = found
    among = f", the worst of {len(files)} that were written" if len(files) > 1 else ""
    result = replace(
        _result(job, analysis, has_failed=has_failed),
        limit_bytes=limit,
        non_torch_bytes=None if limit is None else non_torch,
    )
    source = f"judged by the snapshot {file}{among}"
    if analysis.cut_short is not None:
        shown = format_size(analysis.limit or 0)
        source += f"; the run itself did not fail: its allocations were replayed on a card of {shown}"
    return replace(result, notes=(source, *result.notes))


def _worst_of(files: Sequence[Path], repo: Path, limit: int | None, non_torch: int) -> tuple[Analysis, str] | None:
    """Return the worst recording of a run, and its file; None where no file shows anything."""
    worst: tuple[tuple[bool, int], Analysis, str] | None = None
    for path in files:
        name = str(path.relative_to(repo))
        for each in analyse(load_snapshot(path), file=name, limit=limit, non_torch=non_torch):
            gravity = (_has_oom(each), each.timeline.requested_bytes_at(each.timeline.peak_event()))
            if worst is None or gravity > worst[0]:
                worst = gravity, each, name
    return worst and worst[1:]


def _has_oom(analysis: Analysis) -> bool:
    """Whether the recorded run was refused an allocation, or would be on the card that was named."""
    return analysis.cut_short is not None or failure_of(analysis.recorded) is not None


def _result(job: ProbeJob, analysis: Analysis, *, has_failed: bool) -> ProbeResult:
    predicted = analysis.cut_short is not None
    timeline, rules, verdict = analysis.timeline, analysis.recording.rules, analysis.verdict
    rule = site_rule(job)
    choose = _chooser(rule)
    peak = _peak_of(analysis, rule)
    is_oom = has_failed or predicted
    survived = not is_oom and verdict.kind != "headroom"
    oom = None
    if is_oom:
        event = analysis.failure_event
        oom = Oom(
            requested_bytes=verdict.requested_bytes,
            **place_of(timeline.trace, -1 if event is None else event, choose),
            message=verdict.headline,
            event=event,
        )
    return ProbeResult(
        backend="command",
        outcome="oom" if is_oom else "fits",
        rank=job.rank,
        world_size=job.world_size,
        gpu=job.gpu,
        available_bytes=analysis.budget.available_bytes,
        peak=peak,
        reserved_peak=reserved_peak_of(timeline),
        end_requested_bytes=timeline.requested_bytes_at(len(timeline.trace) - 1),
        phases=phases_of(timeline),
        oom=oom,
        verdict=None if survived else verdict,
        demand_bytes=peak.requested_bytes if predicted and peak else None,
        demand_peak=peak if predicted else None,
        events=len(timeline.trace),
        truncated=timeline.begins_late,
        timeline=decimate(timeline.requested),
        curves=RunCurves.of(timeline),
        segments=len(analysis.snapshot.segments),
        allocator_conf=rules.conf,
        versions=versions() | {RULES: rules.torch_version},
        notes=(_SURVIVED,) if survived else (),
    )


def _peak_of(analysis: Analysis, rule: SiteRule) -> Peak | None:
    """Return the largest amount of requested bytes and what was live then; None where the recording shows nothing."""
    choose, categories_of = _chooser(rule), analysis.evidence.category
    timeline, event = analysis.timeline, analysis.timeline.peak_event()
    live, here = timeline.requested_bytes_at(event), analysis.at_peak
    if not live and event < 0:
        return None
    sites = by_site(timeline, event, choose, categories=categories_of)
    categories: dict[str, int] = {}
    for row in sites:
        categories[row.category] = categories.get(row.category, 0) + row.bytes
    return Peak(
        requested_bytes=live,
        allocated_bytes=here.allocated_bytes if here.is_known else live,
        active_bytes=here.active_bytes if here.is_known else live,
        reserved_bytes=timeline.reserved_peak().reserved_bytes,
        **place_of(timeline.trace, event, choose),
        event=event,
        categories=dict(sorted(categories.items(), key=lambda item: -item[1])),
        sites=sites,
        stacks=by_stack(
            timeline,
            moments_shown(timeline, failed_event=analysis.failure_event),
            categories_of,
            choose=lambda stack: rule.preferred_frame(stack) or user_frame(stack),
            name=lambda file: _named(rule, file),
        ),
    )


def _named(rule: SiteRule, file: str) -> str:
    return rule.name_of(file) if Path(file).is_absolute() else file


def _chooser(rule: SiteRule) -> SiteOf:
    """Return what chooses a line: the checkout's innermost one, else as for a file from anywhere."""

    def choose(stack: Stack, module: str = "") -> Site | None:
        own = rule.preferred_frame(stack)
        site = site_of(stack if own is None else (own,), module)
        return site and replace(site, file=_named(rule, site.file))

    return choose
