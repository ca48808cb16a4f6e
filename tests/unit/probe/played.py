"""A probe without a process: a configuration needs so many bytes a row, and the card is as large as its limit."""

from __future__ import annotations

from oomscope.probe.job import ProbeJob
from oomscope.probe.result import Oom, Peak, ProbeResult
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB, MiB

CARD = 8 * GiB


def requested_bytes(job: ProbeJob) -> int:
    """States, and activations that recomputation and smaller microbatches lessen; later stages keep less."""
    config = job.target.config
    kept = {"full": 1, "selective": 6, None: 8}[config["recompute"]["recompute_granularity"]]
    if config["offload"]["cpu_offloading"]:
        kept -= config["offload"]["cpu_offloading_num_layers"]
    states = 128 if config["optimizer"]["use_distributed_optimizer"] else 256
    return (states + 64 * kept * config["data"]["micro_batch_size"] - job.rank) * MiB


def measured(job: ProbeJob) -> ProbeResult:
    """Return what a probe would have said; a quarter is lost to fragmentation without expandable segments."""
    live = requested_bytes(job)
    expandable = "expandable_segments:True" in job.allocator_conf
    reserved = live if expandable else live * 5 // 4
    available = job.limit_bytes or CARD
    fits = reserved <= available
    peak = Peak(
        requested_bytes=live,
        allocated_bytes=live,
        active_bytes=live,
        reserved_bytes=min(reserved, available),
        iteration=1,
        phase="backward",
        microbatch=0,
        site=None,
        event=1,
    )
    kind = "headroom" if fits else "capacity" if live > available else "fragmentation"
    verdict = Verdict(
        kind=kind,
        headline="So it is.",
        requested_bytes=None if fits else MiB,
        live_requested_bytes=live,
        available_bytes=available,
        reserved_bytes=peak.reserved_bytes,
    )
    oom = Oom(requested_bytes=MiB, iteration=1, phase="backward", microbatch=0, site=None, message="no more")
    return ProbeResult(
        backend="virtual",
        outcome="fits" if fits else "oom",
        rank=job.rank,
        available_bytes=available,
        peak=peak,
        verdict=verdict,
        oom=None if fits else oom,
        demand_bytes=None if fits else live,
    )
