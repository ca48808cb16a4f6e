"""Probe results as the tests need them."""

from __future__ import annotations

from typing import Any

from oomscope.probe.result import ErrorKind, Failure, Oom, Peak, ProbeResult, Site, SiteBytes
from oomscope.snapshot.verdict_types import Verdict, VerdictKind

AVAILABLE = 1000


def row(bytes_: int, line: int = 1, function: str = "forward", category: str = "activation") -> SiteBytes:
    site = Site(file="model.py", line=line, function=function)
    return SiteBytes(site=site, bytes=bytes_, count=1, category=category)


def peak(live: int, reserved: int | None = None, sites: tuple[SiteBytes, ...] | None = None) -> Peak:
    return Peak(
        requested_bytes=live,
        allocated_bytes=live,
        active_bytes=live,
        reserved_bytes=live if reserved is None else reserved,
        iteration=0,
        phase="forward",
        microbatch=0,
        site=None,
        event=0,
        sites=(row(live),) if sites is None else sites,
    )


def fits(live: int, reserved: int | None = None, **fields: Any) -> ProbeResult:
    sites = fields.pop("sites", None)
    return ProbeResult(
        backend="virtual", outcome="fits", available_bytes=AVAILABLE, peak=peak(live, reserved, sites), **fields
    )


def verdict(kind: VerdictKind, live: int, requested: int, tags: tuple[str, ...] = ()) -> Verdict:
    return Verdict(
        kind=kind,
        headline=f"{kind}.",
        requested_bytes=requested,
        live_requested_bytes=live,
        available_bytes=AVAILABLE,
        reserved_bytes=live,
        tags=tags,
    )


def oom(
    kind: VerdictKind = "capacity",
    *,
    live: int = 900,
    at_failure: int | None = None,
    requested: int = 200,
    demand: int | None = None,
    sites: tuple[SiteBytes, ...] | None = None,
    tags: tuple[str, ...] = (),
    **fields: Any,
) -> ProbeResult:
    """A run that peaked at ``live`` bytes and failed to allocate ``requested`` with ``at_failure`` alive (``live``)."""
    return ProbeResult(
        backend=fields.pop("backend", "virtual"),
        outcome="oom",
        available_bytes=AVAILABLE,
        peak=peak(live, sites=sites),
        oom=Oom(
            requested_bytes=requested,
            iteration=0,
            phase="backward",
            microbatch=0,
            site=Site(file="model.py", line=99, function="loss"),
            message="CUDA out of memory.",
        ),
        verdict=verdict(kind, live if at_failure is None else at_failure, requested, tags),
        demand_bytes=demand,
        **fields,
    )


def error(kind: ErrorKind, message: str = "it failed") -> ProbeResult:
    return ProbeResult(backend="virtual", outcome="error", failure=Failure(kind=kind, message=message))
