"""Which ranks of a world are probed for ``--rank``, and which of several results is reported.

Ranks of one pipeline stage hold and do the same, so ``worst`` probes one rank a stage. (Shards whose optimizer states
leave the device in part are the exception, see rule O17.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from oomscope.errors import UsageError
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ProbeResult, RankSummary
from oomscope.units import Bytes

if TYPE_CHECKING:
    from oomscope.config.schema import Config

RankChoice = int | Literal["first", "last", "worst"]
Probe = Callable[[ProbeJob], ProbeResult]


def chosen_ranks(choice: RankChoice, config: Config) -> list[int]:
    """Return the ranks to probe: one for a number, ``first`` or ``last``; one a pipeline stage for ``worst``.

    Raises:
        UsageError: the world of ``config`` has no such rank.
    """
    world_size = config.parallel.world_size
    if isinstance(choice, int):
        if not 0 <= choice < world_size:
            raise UsageError(
                f"a world of {world_size} ranks has no rank {choice}",
                where="--rank",
                remedy=f"give 0 to {world_size - 1}, first, last or worst",
            )
        return [choice]
    if choice == "first":
        return [0]
    if choice == "last":
        return [world_size - 1]
    from oomscope.model.parallel.parallel_state import stage_representatives

    return stage_representatives(config)


def probe_ranks(job: ProbeJob, ranks: list[int], probe: Probe) -> ProbeResult:
    """Probe each of ``ranks`` and return the worst result, which lists them all where there are several.

    Of their snapshots the worst one's is kept, under the name that the job asks for.
    """
    if len(ranks) == 1:
        return probe(replace(job, rank=ranks[0]))
    results = [probe(replace(job, rank=rank, snapshot_path=_of_rank(job.snapshot_path, rank))) for rank in ranks]
    worst = worst_of(results)
    for result in results:
        if result.snapshot is not None and result is not worst:
            Path(result.snapshot).unlink(missing_ok=True)
    if worst.snapshot is not None and job.snapshot_path is not None:
        worst = replace(worst, snapshot=str(Path(worst.snapshot).replace(job.snapshot_path)))
    return replace(worst, ranks=tuple(summary_of(result) for result in results))


def worst_of(results: list[ProbeResult]) -> ProbeResult:
    """Return the gravest of ``results``: an error, then an OOM, then the least margin; the first among equals.

    An error comes first because without that rank's measurement nothing can be said of the world.
    """
    return min(results, key=_gravity)


def ranks_left_out(result: ProbeResult) -> str:
    """Return in one sentence that rank 0 alone was measured, as it is by default, and how to measure those that differ.

    Empty where no other rank may need more, or another was chosen.
    """
    if result.rank != 0 or result.ranks or result.world_size == 1 or result.pipeline_stages == 1:
        return ""
    others = "N measures another" if result.pipeline_stages is None else "worst measures every distinct one"
    return f"only rank 0 of {result.world_size} was measured; --rank {others}"


def summary_of(result: ProbeResult) -> RankSummary:
    """Return ``result`` in one row."""
    message = result.failure.message if result.failure else result.oom.message if result.oom else ""
    return RankSummary(
        rank=result.rank,
        outcome=result.outcome,
        peak=None
        if result.peak is None
        else Bytes(requested_bytes=result.peak.requested_bytes, reserved_bytes=result.peak.reserved_bytes),
        margin_bytes=result.margin_bytes,
        message=message,
    )


def _of_rank(path: str | None, rank: int) -> str | None:
    return None if path is None else f"{path}.rank{rank}"


def needed_bytes(result: ProbeResult) -> int | None:
    """Return the requested bytes that the rank is known to need: of the whole run, or up to the failed request."""
    if result.outcome != "oom":
        return result.peak.requested_bytes if result.peak else None
    return result.demand_bytes or (result.verdict.wanted_bytes if result.verdict else None)


def _gravity(result: ProbeResult) -> tuple[int, int]:
    order = {"error": 0, "oom": 1, "fits": 2}[result.outcome]
    if result.outcome == "oom":
        return order, (result.available_bytes or 0) - (needed_bytes(result) or 0)
    return order, result.margin_bytes or 0
