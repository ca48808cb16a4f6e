"""From a verdict of fragmentation to one whose cures were run: which settings, how each run ended, what that shows.

Expandable segments come first, because they leave least overhead on training runs; then what a replay showed to serve
the recorded allocations. The others are for the case that none of these cures it: on 187 programs that some setting
cures, the first ones below cure all but a few (``benchmarks/fragmentation``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from oomscope.allocator import AllocatorSettings
from oomscope.errors import AllocatorConfError
from oomscope.probe.analysis.analyse import rules_of
from oomscope.probe.analysis.confirm import Card, Failed, Ran, confirm
from oomscope.probe.job import ProbeJob, RunsOn
from oomscope.probe.measurement import DeviceBudget, Ending, FailedAllocation, Measurement
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.judge.confirmed import confirmed
from oomscope.snapshot.replay.fixes import WITH_FRACTION, Rules, merged
from oomscope.snapshot.trace import Action
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import MiB


class RunUnder(Protocol):
    """Runs the target of a job whole, as it was run before, under another configuration of the allocator."""

    def __call__(self, conf: str) -> Ending | None:
        """Return how it ended; None where its process ended without an answer."""
        ...


def is_wanted(job: ProbeJob, backend: RunsOn, verdict: Verdict | None) -> bool:
    """Return whether the settings that may cure a failure are to be run.

    A run that goes on to need more than the card has ends in a failure under every setting.
    """
    if verdict is None or verdict.kind != "fragmentation" or "later: capacity" in verdict.tags:
        return False
    return backend == "virtual" if job.confirm is None else job.confirm


def with_cures(
    job: ProbeJob, result: ProbeResult, measurement: Measurement, run: RunUnder, announce: Callable[[int], None]
) -> ProbeResult:
    """Return ``result``, of a ``measurement`` that failed, with its verdict judged anew by whole runs.

    ``announce`` is told how many runs were made, before each.
    """
    verdict, rules = result.verdict, rules_of(job, measurement)
    if verdict is None:
        return result
    trace, budget = measurement.trace, measurement.device
    requests = trace.size[(trace.action == Action.ALLOC) | (trace.action == Action.OOM)]
    confirmation = confirm(
        lambda conf: ran_of(run(conf), conf, measurement),
        first_candidates(rules, _of_replays(verdict, budget)),
        further_candidates(
            rules,
            largest_request_bytes=int(requests.max(initial=0)),
            has_fraction=budget.own_fraction is not None,
        ),
        rules=rules,
        card=Card(total_bytes=budget.limit_bytes, available_bytes=budget.available_bytes),
        announce=announce,
    )
    if not confirmation.rows:
        return result
    judged = confirmed(verdict, confirmation.rows, untried=confirmation.untried, demand_after=measurement.demand_after)
    return replace(result, verdict=judged)


def _of_replays(verdict: Verdict, budget: DeviceBudget) -> tuple[str, ...]:
    """Return the settings whose replay passes, but those that act only under the fraction that plays a smaller card."""
    if budget.own_fraction is not None:
        return verdict.cured_by
    return tuple(name for name in verdict.cured_by if name not in WITH_FRACTION)


def ran_of(ending: Ending | None, conf: str, before: Measurement) -> Ran:
    """Return what the ``ending`` of a run tells of ``conf``; ``before``: the run that failed, on the same card."""
    if ending is None:
        return Ran(error="its process ended without an answer")
    if ending.failure is not None or ending.measurement is None:
        return Ran(error=ending.failure.message if ending.failure else "it was not measured")
    if (in_force := ending.measurement.allocator_conf) != conf:
        return Ran(error=f"the program set the allocator's configuration itself, to {in_force or 'the defaults'}")
    stats, refused = ending.measurement.stats, ending.out_of_memory
    failed = error = None
    if refused is None and stats.num_ooms:
        return Ran(error="memory was refused there too, and the program went on with less")
    if isinstance(refused, FailedAllocation):
        failed = _failed(refused, before)
    elif refused is not None:
        error = " ".join(refused.message.split())
    return Ran(
        peak_reserved_bytes=stats.reserved_bytes_peak,
        retries=stats.num_alloc_retries,
        failed=failed,
        error=error or "",
    )


def _failed(refused: FailedAllocation, before: Measurement) -> Failed:
    moment = refused.moment
    reserved = sum(segment.total_size for segment in refused.segments)
    left = max(0, before.device.available_bytes - reserved)
    free = refused.device_free_bytes
    place = moment.phase or "step"
    return Failed(
        where=f"{place} of iteration {moment.iteration}" if moment.iteration >= 0 else place,
        requested_bytes=refused.requested_bytes,
        free_bytes=left if free is None else min(free, left),
    )


EXPANDABLE: Final = "expandable_segments:True"
_WITH_EXPANDABLE: Final = (
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:16",
)
"""Smaller pages: with the 20 MiB of the default a request above 1 MiB may need 20 MiB that are free in one piece."""
_WITHOUT_EXPANDABLE: Final = (
    "expandable_segments:False",
    "expandable_segments:False,max_split_size_mb:20,large_segment_size_mb:12",
)
"""For a program that runs with expandable segments and fails."""
_SMALL_SEGMENTS: Final = "max_split_size_mb:20,large_segment_size_mb:12"
_SPLIT_MIB: Final = (20, 64, 256, 1024)
"""Values of max_split_size_mb; one that no request reaches changes nothing."""
_ROUNDED: Final = ("max_split_size_mb:64,roundup_power2_divisions:16", "roundup_power2_divisions:16")


def first_candidates(rules: Rules, replayed: Sequence[str]) -> tuple[str, ...]:
    """Return the settings that are run in any case: expandable segments, and those whose replay passes."""
    return _distinct([EXPANDABLE, *replayed], rules)


def further_candidates(rules: Rules, *, largest_request_bytes: int, has_fraction: bool) -> tuple[str, ...]:
    """Return the settings that are run where none of the first leaves room.

    Args:
        rules: whose allocator it is.
        largest_request_bytes: of the recorded run.
        has_fraction: a memory fraction is set, without which a threshold of garbage collection does nothing.
    """
    splits = [f"max_split_size_mb:{size}" for size in _SPLIT_MIB if size * MiB <= largest_request_bytes]
    is_expandable = rules.settings().expandable_segments
    others = _WITHOUT_EXPANDABLE if is_expandable else (_SMALL_SEGMENTS, *splits, *_ROUNDED)
    return _distinct([*_WITH_EXPANDABLE, *others, *(WITH_FRACTION if has_fraction else ())], rules)


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
