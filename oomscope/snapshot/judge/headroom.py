"""The sentences on a run in which nothing failed, where its own card is unknown or another one is asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from oomscope.snapshot.judge.headline import leak_text, sentences
from oomscope.snapshot.timeline import ReservedPeak
from oomscope.snapshot.verdict_types import FixTried, Verdict
from oomscope.units import format_size


class Refused(NamedTuple):
    """The request that the recorded card refused, and another one may serve."""

    requested_bytes: int
    live_bytes: int
    """Requested bytes then."""


def headroom_without_card(verdict: Verdict, highest: ReservedPeak, *, when: str = "at the peak") -> str:
    """Return ``5.88 GiB of 56.91 GiB reserved are overhead at the peak (0.66 GiB with expandable_segments:True)``.

    Args:
        verdict: the verdict, at the peak of requested bytes; settings were replayed on a card that never refuses.
        highest: where the allocator held most.
        when: the moment that the verdict is of, for people.
    """
    live, reserved = verdict.live_requested_bytes, verdict.reserved_bytes
    if live > reserved:
        return f"the file contradicts itself: {format_size(live)} requested in {format_size(reserved)} of segments"
    better = [
        f"{format_size(fix.overhead_bytes)} with {fix.name}"
        for fix in verdict.tried[1:]
        if fix.overhead_bytes is not None and fix.overhead_bytes < reserved - live
    ]
    instead = f" ({', '.join(better)})" if better else ""
    at_most = ""
    if highest.reserved_bytes > reserved:
        most, then = format_size(highest.reserved_bytes), format_size(highest.requested_bytes)
        at_most = f"at another moment {most} were reserved, with {then} requested"
    overhead = f"{format_size(reserved - live)} of {format_size(reserved)} reserved are overhead {when}{instead}"
    return sentences(overhead, leak_text(verdict.leak), at_most)


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
    limit = format_size(available)
    if live > available:
        text = f"At most {format_size(live)} requested of {limit} available: {format_size(live - available)} too much"
        return replace(verdict, kind="capacity", event=None, headline=sentences(text, "no packing could serve that"))
    if highest.reserved_bytes <= available and refused is None:
        return verdict
    recorded = format_size(highest.reserved_bytes)
    if not verdict.tried:
        text = f"At most {format_size(live)} requested and {recorded} reserved as recorded, of {limit} available"
        unknown = "without a replay it is unknown whether an allocation would fail"
        return replace(verdict, headline=sentences(text, unknown))
    replayed = verdict.tried[0]
    reserved = format_size(replayed.peak_reserved_bytes)
    if refused is not None:
        failed = format_size(refused.requested_bytes)
        text = f"The failed request of {failed} would succeed: at most {reserved} reserved of {limit} available"
        return replace(verdict, headline=sentences(text, "the recording ends there, so later requests are unknown"))
    text = (
        f"No allocation would fail: at most {format_size(live)} requested and {reserved} reserved of {limit} available"
    )
    return replace(verdict, headline=sentences(text, f"{recorded} were reserved as recorded{_why_less(replayed)}"))


def _why_less(replayed: FixTried) -> str:
    """Return why the replay reserves less than the recorded job did, as clauses."""
    reasons = ""
    if replayed.begun_afresh:
        reasons = "; memory cached before the recording would not fit and is left out"
    if replayed.retries:
        times = "once" if replayed.retries == 1 else f"{replayed.retries:,} times"
        reasons += f"; the allocator would release cached memory {times}"
    return reasons
