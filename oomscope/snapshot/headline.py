"""The one sentence that a verdict is told in."""

from __future__ import annotations

from typing import Final

from oomscope.snapshot.attribution import SiteOf
from oomscope.snapshot.gaps import TEXTS
from oomscope.snapshot.leaks import Leak
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import format_size

HOST_TEXT: Final = "Host memory ran out, not the device's"


def headline_of(verdict: Verdict, *, leak: str = "", demand_after: int | None = None) -> str:
    """Return the sentence on a failure.

    Args:
        verdict: the verdict, all but its headline.
        leak: the clause on what grows.
        demand_after: largest live bytes of the run without a limit, where known.
    """
    clauses = [_what_failed(verdict), *_why(verdict), *_besides(verdict, demand_after), leak]
    return "; ".join(clause for clause in clauses if clause)


def headroom_headline(verdict: Verdict, *, leak: str = "") -> str:
    """Return the sentence on a run in which nothing failed."""
    spare = verdict.available_bytes - verdict.reserved_bytes
    overhead = verdict.reserved_bytes - verdict.live_requested_bytes
    live, reserved = format_size(verdict.live_requested_bytes), format_size(verdict.reserved_bytes)
    room = f"{format_size(spare)} to spare of {format_size(verdict.available_bytes)}"
    waste = f"{format_size(overhead)} of what is reserved is overhead"
    for fix in verdict.fixes[1:]:
        if fix.survives:
            waste += f", {format_size(fix.peak_reserved_bytes - verdict.live_requested_bytes)} under {fix.name}"
    return "; ".join(clause for clause in (f"Peak {live} live, {reserved} reserved, {room}", waste, leak) if clause)


def leak_clause(leak: Leak | None, choose: SiteOf) -> str:
    """Return the clause on what grows, with the line that ``choose`` takes from its stack; empty without a leak."""
    if leak is None:
        return ""
    site = choose(leak.stack, leak.module)
    where = f", most of it from {site}" if site else ""
    return f"live memory grows {format_size(leak.bytes_per_iteration)} an iteration{where}"


def _what_failed(verdict: Verdict) -> str:
    live = f"{format_size(verdict.live_requested_bytes)} live, of {format_size(verdict.available_bytes)} available"
    if verdict.kind == "host":
        return f"{HOST_TEXT}; {live}" if verdict.available_bytes else HOST_TEXT
    if verdict.kind == "outside":
        return f"A library's own device allocation failed, not PyTorch's allocator, with {live}"
    return f"{format_size(verdict.requested_bytes)} asked for with {live}"


def _why(verdict: Verdict) -> list[str]:
    if verdict.kind == "capacity":
        needed = verdict.live_requested_bytes + verdict.requested_bytes - verdict.available_bytes
        return [f"no packing could serve it: {format_size(needed)} too much"]
    if verdict.kind == "outside":
        unused = verdict.reserved_bytes - verdict.live_requested_bytes
        return [f"PyTorch held {format_size(unused)} beyond that in its cache"]
    if verdict.kind != "fragmentation":
        return []
    clauses = [f"{format_size(gap.bytes)} of the rest is {TEXTS[gap.reason]}" for gap in verdict.gaps[:1]]
    if verdict.cured_by:
        return [*clauses, f"the same allocations pass under {verdict.cured_by[0]}"]
    if verdict.uncured:
        return [*clauses, "they fail under every setting tried"]
    return [*clauses, "the replay does not reproduce the failure, so no cure can be shown"]


def _besides(verdict: Verdict, demand_after: int | None) -> list[str]:
    clauses = []
    if "spurious" in verdict.tags:
        clauses.append("the identical request passes when repeated")
    if "foreign" in verdict.tags:
        clauses.append("it would have passed with no other process on the device")
    if "later: capacity" in verdict.tags and demand_after:
        clauses.append(f"but the run goes on to need {format_size(demand_after)}")
    return clauses
