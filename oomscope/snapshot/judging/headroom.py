"""The one sentence on a run in which nothing failed, where its own card is unknown or another one is asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from oomscope.snapshot.timeline import ReservedPeak
from oomscope.snapshot.verdict_types import FixTried, Verdict
from oomscope.units import format_size


class Refused(NamedTuple):
    """The request that the recorded card refused, and another one may serve."""

    requested_bytes: int
    live_bytes: int
    """Requested bytes then."""


def headroom_without_card(verdict: Verdict, highest: ReservedPeak, *, when: str = "at the peak") -> str:
    """Return ``5.88 GiB of 56.91 GiB reserved are overhead at the peak, with expandable_segments:True 0.66 GiB; …``.

    Args:
        verdict: the verdict, at the peak of requested bytes; settings were replayed on a card that never refuses.
        highest: where the allocator held most.
        when: the moment that the verdict is of, for people.
    """
    live, reserved = verdict.live_requested_bytes, verdict.reserved_bytes
    if live > reserved:
        return f"the file contradicts itself: {format_size(live)} requested in {format_size(reserved)} of segments"
    at_peak = f"{format_size(reserved - live)} of {format_size(reserved)} reserved are overhead {when}"
    better = [
        f"with {fix.name} {format_size(fix.overhead_bytes)}"
        for fix in verdict.tried[1:]
        if fix.overhead_bytes is not None and fix.overhead_bytes < reserved - live
    ]
    clauses = [", ".join([at_peak, *better])]
    if highest.reserved_bytes > reserved:
        then = f"{format_size(highest.reserved_bytes)}, with {format_size(highest.requested_bytes)} requested"
        clauses.append(f"at another moment {then}, were reserved")
    if verdict.leak:
        where = f", most of it from {verdict.leak.site.brief}" if verdict.leak.site else ""
        clauses.append(f"requested memory grows {format_size(verdict.leak.bytes_per_iteration)} an iteration{where}")
    return "; ".join(clauses)


def on_another_card(verdict: Verdict, highest: ReservedPeak, refused: Refused | None = None) -> Verdict:
    """Return a verdict of headroom as it is on a card that the user names, where it says something else there.

    More requested bytes than the card has are ``capacity``, of no event in particular. Where the job reserved more than
    the card has and yet none of its allocations would fail there, what was replayed counts, not what was reserved.
    Where the recorded card refused one, it is said that this one serves it, and that nobody knows what would have come
    next.

    Args:
        verdict: the verdict, at the peak of requested bytes; settings were replayed on that card.
        highest: where the allocator held most, on the recorded card.
        refused: what the recorded card refused last, if anything.
    """
    live, available = verdict.live_requested_bytes, verdict.available_bytes
    if refused is not None:
        live = max(live, sum(refused))
    if live > available:
        text = (
            f"{format_size(live)} requested at most, of {format_size(available)} available; no packing could serve that"
        )
        return replace(verdict, kind="capacity", event=None, headline=text)
    if highest.reserved_bytes <= available and refused is None:
        return verdict
    if not verdict.tried:
        text = (
            f"{format_size(live)} requested at most and {format_size(highest.reserved_bytes)} reserved as recorded, of "
            f"{format_size(available)} available; without a replay it cannot be told whether an allocation would fail"
        )
        return replace(verdict, headline=text)
    replayed = verdict.tried[0]
    if refused is not None:
        text = (
            f"The {format_size(refused.requested_bytes)} that failed would be served: at most "
            f"{format_size(replayed.peak_reserved_bytes)} reserved of {format_size(available)} available; what would "
            "have come after it is not known"
        )
        return replace(verdict, headline=text)
    text = (
        f"No allocation would fail: {format_size(live)} requested at most, and at most "
        f"{format_size(replayed.peak_reserved_bytes)} reserved of {format_size(available)} available, instead of "
        f"{format_size(highest.reserved_bytes)} as recorded{_why_less(replayed)}"
    )
    return replace(verdict, headline=text)


def _why_less(replayed: FixTried) -> str:
    """Return why the replay reserves less than the recorded job did, as a clause."""
    reasons = []
    if replayed.begun_afresh:
        reasons.append("since what was cached before the recording began would not fit, and is left out")
    if replayed.retries:
        times = "once" if replayed.retries == 1 else f"{replayed.retries:,} times"
        reasons.append(f"since the allocator would release cached memory {times}")
    return "".join(f", {reason}" for reason in reasons)
