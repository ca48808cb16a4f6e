"""The one sentence that a verdict is told in."""

from __future__ import annotations

from typing import Final

from oomscope.snapshot.timeline import ReservedPeak
from oomscope.snapshot.verdict_types import FailedIn, LeakSuspect, Verdict
from oomscope.units import format_size

ELSEWHERE_TEXTS: Final[dict[FailedIn, str]] = {
    "outside": "A library's own device allocation failed{said}, not PyTorch's allocator",
    "host": "Host memory ran out{said}, not the device's",
    "program": "The program raised torch.OutOfMemoryError{said}, and no allocation of PyTorch's allocator failed",
}
MESSAGE_LENGTH: Final = 160
"""Characters of an error's text that are quoted: libraries tell long stories."""


def headline_of(verdict: Verdict, *, requested_bytes: int, demand_after: int | None = None) -> str:
    """Return the sentence on an allocation that the caching allocator refused.

    Args:
        verdict: the verdict, all but its headline.
        requested_bytes: R, the request that failed.
        demand_after: largest held bytes of the run without a limit, where known.
    """
    if "free unknown" in verdict.tags:
        return _without_free_bytes(verdict, requested_bytes)
    bound = "at most " if "fraction" in verdict.tags else ""
    available = f"{bound}{format_size(verdict.available_bytes)} available"
    live = f"{format_size(verdict.live_requested_bytes)} live, of {available}"
    what_failed = f"{format_size(requested_bytes)} asked for with {live}"
    return _joined(
        what_failed, *_why(verdict, requested_bytes), *_besides(verdict, demand_after), _leak_clause(verdict.leak)
    )


def _without_free_bytes(verdict: Verdict, requested_bytes: int) -> str:
    """Return the sentence where nobody told how much of the device was free."""
    live, reserved = format_size(verdict.live_requested_bytes), format_size(verdict.reserved_bytes)
    why = {
        "capacity": "so little that no packing could serve it",
        "fragmentation": "yet as much had been reserved before as the request and all that is live take",
    }.get(verdict.kind, "so it cannot be told whether other settings would have served it")
    return _joined(
        f"{format_size(requested_bytes)} asked for with {live} live in {reserved} reserved",
        f"how much of the device was free is not recorded, {why}",
        _cure(verdict) if verdict.cured_by else "",
        _leak_clause(verdict.leak),
    )


def elsewhere_headline(verdict: Verdict, *, failed_in: FailedIn, message: str) -> str:
    """Return the sentence on a failure that the caching allocator had no part in, with what the error said."""
    said = message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
    what_failed = ELSEWHERE_TEXTS[failed_in].format(said=f' ("{said}")' if said else "")
    live, reserved = format_size(verdict.live_requested_bytes), format_size(verdict.reserved_bytes)
    held = f"the device held {live} live, {reserved} reserved, of {format_size(verdict.available_bytes)} available"
    return _joined(what_failed, held, _leak_clause(verdict.leak))


def headroom_headline(verdict: Verdict, highest: ReservedPeak) -> str:
    """Return the sentence on a run in which nothing failed.

    Args:
        verdict: the verdict, all but its headline; its numbers are those at the peak of requested bytes.
        highest: where the allocator held most, which decides what is left and may be another moment.
    """
    live, reserved = format_size(verdict.live_requested_bytes), format_size(highest.reserved_bytes)
    peak = f"Peak {live} requested, {reserved} reserved"
    if highest.reserved_bytes > verdict.reserved_bytes:
        then, live_then = format_size(verdict.reserved_bytes), format_size(highest.requested_bytes)
        peak = f"Peak {live} requested, {then} reserved then; at most {reserved} reserved, with {live_then} requested"
    room = f"{format_size(verdict.available_bytes - highest.reserved_bytes)} to spare"
    waste = f"{format_size(highest.overhead_bytes)} of those {reserved} is overhead"
    others = [
        f"under {fix.name} at most {format_size(fix.peak_reserved_bytes)} would be reserved"
        for fix in verdict.tried[1:]
        if fix.survives
    ]
    return _joined(
        f"{peak}, {room} of {format_size(verdict.available_bytes)}", waste, *others, _leak_clause(verdict.leak)
    )


def _leak_clause(leak: LeakSuspect | None) -> str:
    if leak is None:
        return ""
    where = f", most of it from {leak.site.brief}" if leak.site else ""
    return f"requested memory grows {format_size(leak.bytes_per_iteration)} an iteration{where}"


def _joined(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def _why(verdict: Verdict, requested_bytes: int) -> list[str]:
    if verdict.kind == "capacity" and "fraction" in verdict.tags:
        return ["no packing could serve it under the memory fraction that was set"]
    if verdict.kind == "capacity":
        needed = verdict.live_requested_bytes + requested_bytes - verdict.available_bytes
        return [f"no packing could serve it: {format_size(needed)} too much"]
    where = [_where_the_rest_is(verdict)] if verdict.gaps else []
    return [*where, _cure(verdict) if verdict.cured_by else _no_cure(verdict)]


def _no_cure(verdict: Verdict) -> str:
    """Return the clause on how far the settings that were tried go, and why that is no cure."""
    if verdict.confirmed:
        runs = sum(row.how == "run" for row in verdict.tried)
        return f"run again, it failed under {'the one setting' if runs == 1 else f'each of the {runs} settings'} tried"
    if verdict.uncured and verdict.put_off_by:
        later = verdict.put_off_by
        put_off = f"{later.name} gets past this failure, but fails at event {later.failed_event:,}"
        return f"{put_off}; no setting tried serves the whole recording"
    if "later: capacity" in verdict.tags and verdict.gets_past:
        return f"{verdict.gets_past.name} gets past this failure"
    if verdict.uncured:
        return "they fail under every setting tried"
    if "undecided" in verdict.tags:
        return "it passes once the blocks from before the recording lie otherwise, whatever the setting"
    unlike = "does not reproduce the failure" if verdict.tried else "does not repeat the recording"
    return f"the replay {unlike}, so no cure can be shown"


def _cure(verdict: Verdict) -> str:
    """Return the clause on the preferred cure: of a run with what it left, of a replay with how far it went."""
    name, row = verdict.cured_by[0], verdict.preferred
    if not verdict.confirmed or row is None:
        return f"the same allocations pass to the end of the recording under {name}"
    room = f"{format_size(row.margin_bytes)} to spare"
    return f"it ran to the end under {name} with {'only ' if row.is_tight else ''}{room}"


def _where_the_rest_is(verdict: Verdict) -> str:
    """Return the clause on what was not live and yet served nobody, with the two largest parts of it, and the rest."""
    rest = verdict.available_bytes - verdict.live_requested_bytes
    clause = f"the other {format_size(rest)} did not serve it"
    if len(verdict.gaps) == 1:
        return f"{clause}: {verdict.gaps[0].text}"
    parts = [f"{format_size(gap.bytes)} {gap.text}" for gap in verdict.gaps[:2]]
    if others := sum(gap.bytes for gap in verdict.gaps[2:]):
        parts.append(f"{format_size(others)} elsewhere")
    return f"{clause}: {', '.join(parts[:-1])}, and {parts[-1]}"


def _besides(verdict: Verdict, demand_after: int | None) -> list[str]:
    clauses = []
    if "spurious" in verdict.tags:
        clauses.append("the identical request passes when repeated")
    if "fraction" in verdict.tags:
        clauses.append("the fraction refused it: enough was free on the device")
    if "foreign" in verdict.tags:
        clauses.append("it would have passed with no other process on the device")
    if "later: capacity" in verdict.tags and demand_after:
        clauses.append(f"but the run goes on to need {format_size(demand_after)}")
    return clauses
