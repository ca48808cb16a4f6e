"""Results with plausible numbers, for the tests of every report."""

from __future__ import annotations

from dataclasses import replace

from oomscope.probe.result import Failure, Oom, Peak, PhaseBytes, ProbeResult, ReservedPeak, Site, SiteBytes
from oomscope.snapshot.verdict_types import FixTried, Gap, Verdict
from oomscope.units import GiB, MiB

MLP = Site(file="/src/tinytrain/model.py", line=88, function="forward", module="layers.3.mlp")
LOSS = Site(file="/src/tinytrain/loss.py", line=14, function="cross_entropy")
SITES = (
    SiteBytes(site=MLP, bytes=5 * GiB, count=12, category="activation"),
    SiteBytes(site=LOSS, bytes=1 * GiB, count=1, category="temporary"),
)
AT_FAILURE = tuple(replace(each, bytes=each.bytes - 512 * MiB) for each in SITES)
PEAK = Peak(
    requested_bytes=6 * GiB,
    allocated_bytes=6 * GiB + 3 * MiB,
    active_bytes=6 * GiB + 3 * MiB,
    reserved_bytes=7 * GiB,
    iteration=1,
    phase="backward",
    microbatch=0,
    site=MLP,
    event=1234,
    categories={"activation": 5 * GiB, "temporary": 1 * GiB, "parameter": 0},
    sites=SITES,
)
PHASES = (
    PhaseBytes(iteration=-1, phase="init", requested_bytes=1 * GiB, reserved_bytes=1 * GiB),
    PhaseBytes(iteration=0, phase="forward", requested_bytes=5 * GiB, reserved_bytes=6 * GiB),
    PhaseBytes(iteration=1, phase="backward", requested_bytes=6 * GiB, reserved_bytes=7 * GiB),
)
FITS = ProbeResult(
    backend="virtual",
    outcome="fits",
    gpu="h100-80gb",
    limit_bytes=10 * GiB,
    non_torch_bytes=1 * GiB,
    available_bytes=9 * GiB,
    peak=PEAK,
    reserved_peak=ReservedPeak(
        reserved_bytes=7 * GiB,
        requested_bytes=6 * GiB,
        iteration=1,
        phase="backward",
        microbatch=0,
        event=1234,
        reserved_then_bytes=7 * GiB,
    ),
    phases=PHASES,
    timeline=tuple(range(0, 6 * GiB, 100 * MiB)),
    flops={"model": 3_500_000_000_000, "recompute": 500_000_000_000},
    verdict=Verdict(
        kind="headroom",
        headline="2.00 GiB are left at the peak.",
        requested_bytes=None,
        live_requested_bytes=6 * GiB,
        available_bytes=9 * GiB,
        reserved_bytes=7 * GiB,
    ),
)
FRAGMENTATION = Verdict(
    kind="fragmentation",
    headline="The request of 1.50 GiB fits by size, but no free range is large enough.",
    requested_bytes=3 * GiB // 2,
    live_requested_bytes=6 * GiB,
    available_bytes=9 * GiB,
    reserved_bytes=8 * GiB,
    cured_by=("expandable_segments:True",),
    gaps=(
        Gap(reason="split_remainder", bytes=2 * GiB, text="free remainders of segments that live blocks pin"),
        Gap(reason="free_device", bytes=1 * GiB, text="free on the device"),
    ),
    tried=(
        FixTried(
            name="as recorded", conf="", survives=False, peak_reserved_bytes=8 * GiB, margin_bytes=-1, failed_event=99
        ),
        FixTried(
            name="expandable_segments:True",
            conf="expandable_segments:True",
            survives=True,
            peak_reserved_bytes=7 * GiB,
            margin_bytes=2 * GiB,
        ),
    ),
)
OOM = replace(
    FITS,
    outcome="oom",
    oom=Oom(
        requested_bytes=3 * GiB // 2,
        iteration=1,
        phase="loss",
        microbatch=0,
        site=LOSS,
        message="CUDA out of",
        sites=AT_FAILURE,
    ),
    verdict=FRAGMENTATION,
)
CONFIRMED = replace(
    OOM,
    verdict=replace(
        FRAGMENTATION,
        confirmed=True,
        tried=(
            FRAGMENTATION.tried[0],
            replace(FRAGMENTATION.tried[1], how="run"),
            FixTried(
                name="max_split_size_mb:64",
                conf="max_split_size_mb:64",
                how="run",
                survives=False,
                peak_reserved_bytes=9 * GiB,
                margin_bytes=-MiB,
                failed_in="optimizer of iteration 2",
                note="its replay passes",
            ),
            replace(FRAGMENTATION.tried[1], name="max_split_size_mb:256", conf="max_split_size_mb:256"),
        ),
        untried=("roundup_power2_divisions:16",),
    ),
)
CAPACITY = replace(
    OOM, verdict=replace(FRAGMENTATION, kind="capacity", headline="Too much.", cured_by=(), gaps=(), tried=())
)
HOST = replace(
    FITS,
    outcome="oom",
    oom=Oom(
        requested_bytes=None,
        iteration=1,
        phase="",
        microbatch=-1,
        site=None,
        message="MemoryError",
        sites=AT_FAILURE,
    ),
    verdict=replace(
        FRAGMENTATION, kind="host", headline="Host memory ran out.", requested_bytes=None, tried=(), gaps=()
    ),
)
BROKEN = ProbeResult(
    backend="virtual",
    outcome="error",
    failure=Failure(kind="import", message="No module named 'tinytrain.data'", detail="Traceback …"),
)
