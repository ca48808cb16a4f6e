"""From a verdict of fragmentation to one whose cures were run: the whole program, again, under each setting.

A replay knows the allocations up to the failure; whether the rest of the program passes under a setting, only running
it shows. Expandable segments come first, because they leave least overhead on training runs; then what a replay showed
to serve the recorded allocations. Further settings are run, within limits of number and time, until one of all leaves
room: on 187 programs that some setting cures, the first ones below cure all but a few (``benchmarks/fragmentation``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.alloc_conf import EXPANDABLE, merged
from oomscope.errors import AllocatorConfError
from oomscope.probe.analysis.analyse import rules_of
from oomscope.probe.analysis.value_dependence import is_of_started_thread
from oomscope.probe.analysis.whole_run import same_request
from oomscope.probe.job import ProbeJob, RunsOn
from oomscope.probe.measurement import Ending, FailedAllocation, Measurement
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.judge.confirmed import confirmed, is_tight
from oomscope.snapshot.replay.fixes import WITH_FRACTION, Rules
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.trace import Action
from oomscope.snapshot.verdict_types import FixTried, Verdict
from oomscope.units import MiB

RUNS: Final = 14
"""Most whole runs."""
SECONDS: Final = 60.0
"""No run begins that is expected to end later, while no setting is known that leaves room; the first always begins."""
SECONDS_IF_CURED: Final = 10.0
"""Seconds by which a run must be expected to end once such a setting is known: the rest is for the table."""
_WITH_EXPANDABLE: Final = (
    f"{EXPANDABLE},large_segment_size_mb:12",
    f"{EXPANDABLE},large_segment_size_mb:16",
)
"""Settings with smaller pages: with 20 MiB, the default, a request above 1 MiB may need 20 MiB in one piece."""
_WITHOUT_EXPANDABLE: Final = (
    "expandable_segments:False",
    "expandable_segments:False,max_split_size_mb:20,large_segment_size_mb:12",
)
"""Settings for a program that runs with expandable segments and fails."""
_SMALL_SEGMENTS: Final = "max_split_size_mb:20,large_segment_size_mb:12"
_SPLIT_MIB: Final = (20, 64, 256, 1024)
"""Values of max_split_size_mb; one that no request reaches changes nothing."""
_ROUNDED: Final = ("max_split_size_mb:64,roundup_power2_divisions:16", "roundup_power2_divisions:16")


def is_wanted(job: ProbeJob, backend: RunsOn, verdict: Verdict | None) -> bool:
    """Return whether the settings that may cure a failure are to be run.

    A run that goes on to need more than the card has ends in a failure under every setting.
    """
    if verdict is None or verdict.kind != "fragmentation" or "later: capacity" in verdict.tags:
        return False
    return backend == "virtual" if job.confirm is None else job.confirm


def with_cures(
    result: ProbeResult,
    measurement: Measurement,
    run: Callable[[str], Ending | None],
    announce: Callable[[int], None],
) -> ProbeResult:
    """Return ``result``, of a ``measurement`` that failed, with its verdict judged anew by whole runs.

    ``run`` runs the target whole, on the same card, under another configuration of the allocator; it returns None where
    the process ends without an answer. ``announce`` is told how many runs were made, before each.
    """
    verdict, rules, budget = result.verdict, rules_of(measurement), measurement.device
    if verdict is None:
        return result
    has_fraction = budget.own_fraction is not None  # else one plays a smaller card, and may be left out
    replayed = [name for name in verdict.cured_by if has_fraction or name not in WITH_FRACTION]
    trace = measurement.trace
    requests = trace.size[(trace.action == Action.ALLOC) | (trace.action == Action.OOM)]
    first = first_candidates(rules, replayed)
    largest = int(requests.max(initial=0))
    further = further_candidates(rules, first, largest_request_bytes=largest, has_fraction=has_fraction)

    def try_setting(name: str) -> FixTried:
        conf = merged(rules.conf, name)
        return row_of(name, conf, run(conf), measurement)

    rows, untried = try_each(try_setting, first, further, announce=announce)
    if not rows:
        return result
    judged = confirmed(verdict, rows, untried=untried, demand_after=measurement.demand_after)
    unclear = [] if judged.cured_by else [row for row in rows if row.note]
    notes = tuple(f"the run under {row.name} shows no cure: {row.note}" for row in unclear[:1])
    return replace(result, verdict=judged, notes=(*result.notes, *notes))


def try_each(
    try_setting: Callable[[str], FixTried],
    first: Sequence[str],
    further: Sequence[str],
    *,
    announce: Callable[[int], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[FixTried, ...], tuple[str, ...]]:
    """Try each of ``first``, then ``further`` until one leaves room; return a row a run, and what was not tried.

    No more than :data:`RUNS` are tried, and none that is expected to end too late.
    """
    rows: list[FixTried] = []
    untried: list[str] = []
    began, longest = clock(), 0.0
    for name in (*first, *further):
        is_cured = any(row.survives and not row.is_tight for row in rows)
        if is_cured and name not in first:
            break
        expected_end = clock() - began + longest
        latest = SECONDS_IF_CURED if is_cured else SECONDS
        if rows and (len(rows) >= RUNS or expected_end > latest):
            untried.append(name)
            continue
        announce(len(rows))
        now = clock()
        rows.append(try_setting(name))
        longest = max(longest, clock() - now)
    return tuple(rows), tuple(untried)


def row_of(name: str, conf: str, ending: Ending | None, before: Measurement) -> FixTried:
    """Return what the ``ending`` of a run shows of a setting.

    ``conf`` is the whole configuration that the run had, and ``before`` the run that failed, on the same card.
    """
    row = FixTried(name=name, conf=conf, how="run", survives=False, peak_reserved_bytes=0, margin_bytes=0)
    if ending is None:
        return replace(row, note="its process ended without a result")
    measurement, refused = ending.measurement, ending.out_of_memory
    if ending.failure is not None or measurement is None:
        return replace(row, note=ending.failure.message if ending.failure else "it was not measured")
    if (in_force := measurement.allocator_conf) != conf:
        own = in_force or "the defaults"
        return replace(row, note=f"the program set the allocator's configuration itself, to {own}")
    stats, budget = measurement.stats, before.device
    if refused is None and stats.num_ooms:
        return replace(row, note="an allocation failed there too, and the program continued with less")
    row = replace(row, peak_reserved_bytes=stats.reserved_bytes_peak, retries=stats.num_alloc_retries)
    if refused is None and not _repeats(measurement, before):
        other = "it asked for other sizes than the run that failed: they depend on free memory, or differ in each run"
        return replace(row, note=other)
    if refused is None:
        margin = budget.available_bytes - stats.reserved_bytes_peak
        return replace(row, survives=True, margin_bytes=margin, is_tight=is_tight(margin, budget.limit_bytes))
    if not isinstance(refused, FailedAllocation):
        return replace(row, note=" ".join(refused.message.split()))
    moment = refused.moment
    place = moment.phase or "step"
    left = max(0, budget.available_bytes - sum(segment.total_size for segment in refused.segments))
    free = left if refused.device_free_bytes is None else min(refused.device_free_bytes, left)
    needed = _taken_from_card(refused.requested_bytes, conf, rules_of(before))
    where = f"{place} of iteration {moment.iteration}" if moment.iteration >= 0 else place
    return replace(row, margin_bytes=free - needed, failed_in=where)


def _repeats(run: Measurement, before: Measurement) -> bool:
    """Return whether ``run`` asks for the same sizes up to the first request that failed ``before``.

    True also where that cannot be told: a ring wrapped, the runs are of different ranks, or threads of the program take
    turns.
    """
    trace = before.trace
    failed = np.flatnonzero(trace.action == Action.OOM)
    if not len(failed) or before.truncated or run.truncated or run.rank != before.rank:
        return True
    if any(map(is_of_started_thread, trace.stacks)):
        return True
    request = same_request(run.trace, trace, int(failed[0]))
    if request is None:
        return False
    settings = rules_of(before).settings()  # torch tells the rounded size of a request that failed
    refused, repeated = int(trace.size[failed[0]]), int(run.trace.size[request])
    return request_as_seen(settings, refused, 0).size == request_as_seen(settings, repeated, 0).size


def _taken_from_card(requested_bytes: int, conf: str, rules: Rules) -> int:
    """Return what the allocator takes of the card for a request: a whole segment, or whole pages."""
    try:
        settings = Rules(conf=conf, torch_version=rules.torch_version).settings()
    except AllocatorConfError:
        return requested_bytes
    return request_as_seen(settings, requested_bytes, 0).taken_from_driver


def first_candidates(rules: Rules, replayed: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that are run in any case: expandable segments, and those whose replay passes."""
    return _distinct([EXPANDABLE, *replayed], rules)


def further_candidates(
    rules: Rules, first: Sequence[str], *, largest_request_bytes: int, has_fraction: bool
) -> tuple[str, ...]:
    """Return the settings that are run where none of the ``first`` leaves room.

    Without a memory fraction a threshold of garbage collection does nothing.
    """
    splits = [f"max_split_size_mb:{size}" for size in _SPLIT_MIB if size * MiB <= largest_request_bytes]
    is_expandable = rules.settings().expandable_segments
    others = _WITHOUT_EXPANDABLE if is_expandable else (_SMALL_SEGMENTS, *splits, *_ROUNDED)
    names = _distinct([*first, *_WITH_EXPANDABLE, *others, *(WITH_FRACTION if has_fraction else ())], rules)
    return tuple(name for name in names if name not in first)


def _distinct(names: Iterable[str], rules: Rules) -> tuple[str, ...]:
    """Return the names that make other settings of ``rules``, which this torch knows; the first of those alike."""
    recorded = replace(rules.settings(), conf="")
    found: dict[AllocatorSettings, str] = {}
    for name in names:
        conf = merged(rules.conf, name)
        try:
            settings = AllocatorSettings.parse(conf, torch_version=rules.torch_version)
        except AllocatorConfError:
            continue
        found.setdefault(replace(settings, conf=""), name)
    return tuple(name for settings, name in found.items() if settings != recorded)
