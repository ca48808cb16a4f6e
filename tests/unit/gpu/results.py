"""Results of probes that nobody ran."""

from __future__ import annotations

from oomscope.probe.result import Peak, ProbeResult
from oomscope.units import GiB, MiB


def fitting(*, outcome="fits", reserved=2 * GiB) -> ProbeResult:
    peak = Peak(
        requested_bytes=reserved // 2,
        allocated_bytes=reserved // 2,
        active_bytes=reserved // 2,
        reserved_bytes=reserved,
        iteration=1,
        phase="backward",
        microbatch=0,
        site=None,
        event=3,
    )
    card = {"gpu": "NVIDIA H200", "limit_bytes": 100 * GiB, "non_torch_bytes": 7 * MiB, "other_process_bytes": 0}
    return ProbeResult(backend="cuda", outcome=outcome, peak=peak, **card)
