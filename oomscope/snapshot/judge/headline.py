"""The headline of a verdict: at most two sentences. What they leave out is in the tables and in the advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from oomscope.snapshot.accounting.timeline import ReservedPeak
from oomscope.snapshot.verdict_types import FailedIn, LeakSuspect, Verdict
from oomscope.units import format_size

ELSEWHERE_TEXTS: Final[dict[FailedIn, str]] = {
    "outside": "A library's own device allocation failed{message}, not PyTorch's allocator",
    "host": "Host memory ran out{message}, not the device's",
    "program": "The program raised torch.OutOfMemoryError{message}, but no allocation of PyTorch's allocator failed",
}
MESSAGE_LENGTH: Final = 160
"""Characters of an error's text that are quoted: libraries tell long stories."""
MOST_WORDS: Final = 25
"""Words of the second sentence."""


def headline_of(verdict: Verdict, *, requested_bytes: int, demand_after: int | None = None) -> str:
    """Return the sentences on an allocation of R bytes that the caching allocator refused.

    ``demand_after`` is the most that the run without a limit holds, where that is known.
    """
    bound = "at most " if verdict.available_is_bound else ""
    live, available = format_size(verdict.live_requested_bytes), f"{bound}{format_size(verdict.available_bytes)}"
    failed = f"{format_size(requested_bytes)} requested with {live} live of {available} available"
    why = _why(verdict, requested_bytes, demand_after)
    cure = "" if verdict.kind == "capacity" else _cure(verdict) if verdict.cured_by else _no_cure(verdict)
    return sentences(
        f"{failed}: {why}" if why else failed, cure, *_besides(verdict, demand_after), leak_text(verdict.leak)
    )


def sentences(first: str, *clauses: str) -> str:
    """Return ``first`` and, as a second sentence, as many of ``clauses`` as fit into it, the most important first."""
    second: list[str] = []
    for clause in filter(None, clauses):
        if len(" ".join([*second, clause]).split()) <= MOST_WORDS:
            second.append(clause)
    text = "; ".join(second)
    return f"{first}. {text[0].upper()}{text[1:]}" if text else first


def elsewhere_headline(verdict: Verdict, *, failed_in: FailedIn, message: str) -> str:
    """Return the sentences on a failure that the caching allocator had no part in, with the message of the error."""
    shown = message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
    what_failed = ELSEWHERE_TEXTS[failed_in].format(message=f' ("{shown}")' if shown else "")
    live, reserved = format_size(verdict.live_requested_bytes), format_size(verdict.reserved_bytes)
    held = f"the device held {live} live, {reserved} reserved, of {format_size(verdict.available_bytes)} available"
    return sentences(what_failed, held, leak_text(verdict.leak))


def headroom_headline(verdict: Verdict, highest: ReservedPeak) -> str:
    """Return the sentences on a run in which nothing failed; ``verdict`` is that of the peak of requested bytes."""
    live, reserved = format_size(verdict.live_requested_bytes), format_size(highest.reserved_bytes)
    peak = f"Peak {live} requested, {reserved} reserved"
    if highest.reserved_bytes > verdict.reserved_bytes:
        then = format_size(verdict.reserved_bytes)
        peak = f"Peak {live} requested, {then} reserved then; at most {reserved} reserved{_with_then(highest)}"
    up_to = "up to " if verdict.available_is_bound else ""
    room = f"{up_to}{format_size(verdict.available_bytes - highest.reserved_bytes)}"
    others = (
        f"{fix.name} would reserve at most {format_size(fix.peak_reserved_bytes)}"
        for fix in verdict.tried[1:]
        if fix.survives and fix.peak_reserved_bytes < highest.reserved_bytes
    )
    return sentences(
        f"{peak}, {room} to spare of {up_to}{format_size(verdict.available_bytes)}",
        f"{format_size(highest.overhead_bytes)} of the {format_size(highest.reserved_then_bytes)} is overhead",
        leak_text(verdict.leak),
        *others,
    )


def _with_then(highest: ReservedPeak) -> str:
    """Return what was requested when most was reserved, where that is the moment that is known."""
    is_known = highest.reserved_then_bytes == highest.reserved_bytes
    return f", with {format_size(highest.requested_bytes)} requested" if is_known else ""


def leak_text(leak: LeakSuspect | None) -> str:
    """Return by how much requested memory grows; empty where nothing does."""
    if leak is None:
        return ""
    more = f" and {leak.further_lines} more" if leak.further_lines else ""
    where = f", mostly from {leak.site.brief}{more}" if leak.site else ""
    return f"requested memory grows {format_size(leak.bytes_per_iteration)} an iteration{where}"


def _why(verdict: Verdict, requested_bytes: int, demand_after: int | None) -> str:
    """Return the clause on what was missing; of free memory the table shows where it was."""
    if verdict.kind == "capacity" and verdict.available_is_bound:
        return "more than the memory fraction that was set allows"
    free = verdict.available_bytes - verdict.live_requested_bytes
    if verdict.kind == "capacity":
        short, more = requested_bytes - free, (demand_after or 0) - verdict.available_bytes
        later = f" here, {format_size(more)} short for the whole run" if more > short else ""
        return f"{format_size(short)} short{later}"
    return f"{format_size(free)} were free but unusable" if verdict.gaps else ""


def _no_cure(verdict: Verdict) -> str:
    """Return the clause on how far the settings that were tried go, and why that is no cure."""
    if verdict.confirmed:
        tried = [row for row in verdict.tried if row.how == "run"]
        runs = len(tried)
        if not all(row.failed_in for row in tried):
            return f"no cure is shown by further runs under the {runs} settings tried"
        again = "a second run" if runs == 1 else "further runs"
        return f"{again} failed under {'the one setting' if runs == 1 else f'each of the {runs} settings'} tried"
    if verdict.uncured and verdict.put_off_by:
        later = verdict.put_off_by
        return (
            f"no setting tried serves the whole recording: under {later.name} it fails at event {later.failed_event:,}"
        )
    if "later: capacity" in verdict.tags and verdict.gets_past:
        return f"this request passes under {verdict.gets_past.name}"
    if verdict.uncured:
        return "it fails under every setting tried"
    if "undecided" in verdict.tags:
        return "whether it fails depends on the layout of blocks from before the recording, not on the setting"
    unlike = "the failure" if verdict.tried else "the recording"
    return f"the replay does not reproduce {unlike}, so no setting is shown to help"


def _cure(verdict: Verdict) -> str:
    """Return the clause on the preferred cure: of a run with what it left, of a replay with how far it went."""
    name, row = verdict.cured_by[0], verdict.preferred
    if not verdict.confirmed or row is None:
        return f"the same allocations pass to the end of the recording under {name}"
    room = f"{format_size(row.margin_bytes)} to spare"
    return f"a second run went to the end under {name} with {'only ' if row.is_tight else ''}{room}"


def _besides(verdict: Verdict, demand_after: int | None) -> list[str]:
    clauses = []
    if "later: capacity" in verdict.tags and demand_after:
        clauses.append(f"the run later needs {format_size(demand_after)}")
    elif verdict.rest_exceeds:
        needed = format_size(verdict.rest_exceeds.needed_bytes)
        clauses.append(f"an iteration like the last needs {needed}")
    if "fraction" in verdict.tags:
        clauses.append("the memory fraction refused it although enough was free on the device")
    if "foreign" in verdict.tags:
        clauses.append("it passes without the other processes on the device")
    if "spurious" in verdict.tags:
        clauses.append("the identical request passes when repeated")
    return clauses


class Refused(NamedTuple):
    """The request that the recorded card refused, and that another card may serve."""

    requested_bytes: int
    live_bytes: int
    """Requested bytes then."""
    available_bytes: int | None
    """Bytes that the process could hold on the recorded card; None where that is unknown."""
    card_bytes: int | None = None
    """Bytes of the recorded card in all; None where the recording does not say it."""


def headroom_without_card(verdict: Verdict, highest: ReservedPeak, *, when: str = "at the peak") -> str:
    """Return ``5.88 GiB of 56.91 GiB reserved are overhead at the peak (0.66 GiB with expandable_segments:True)``.

    Settings were replayed on a card that never refuses. ``when`` is the moment that the verdict is of, for people.
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
        at_most = f"at another moment {format_size(highest.reserved_bytes)} were reserved{_with_then(highest)}"
    overhead = f"{format_size(reserved - live)} of {format_size(reserved)} reserved are overhead {when}{instead}"
    return sentences(overhead, leak_text(verdict.leak), at_most)


def on_another_card(
    verdict: Verdict, highest: ReservedPeak, refused: Refused | None = None, *, reserved_before: int = 0
) -> Verdict:
    """Return a verdict of headroom as it is on a card that the user names, where it differs there.

    More requested bytes than the card has are ``capacity``, of no event in particular. Where the job reserved more than
    the card has and yet none of its allocations would fail there, what was replayed counts, not what was reserved.
    Where the recorded card refused one, it is said that this one serves it, and that the recording ends there.
    ``reserved_before`` is what a peak before the recording left reserved: where the card has less, it may not do.
    """
    live, available = verdict.live_requested_bytes, verdict.available_bytes
    if refused is not None:
        live = max(live, refused.requested_bytes + refused.live_bytes)
    if highest.reserved_bytes <= available and refused is None and live <= available:
        return verdict
    limit, recorded = format_size(available), format_size(highest.reserved_bytes)
    if live > available:
        text = sentences(
            f"At most {format_size(live)} requested of {limit} available: {format_size(live - available)} too much",
            "no packing could serve that",
        )
        return replace(verdict, kind="capacity", event=None, headline=text)
    if reserved_before > available:
        text = sentences(
            f"At most {format_size(live)} requested of {limit} available since the recording began",
            f"{format_size(reserved_before)} had been reserved before it, for a peak that is not in the file",
        )
        return replace(verdict, headline=text)
    if not verdict.tried:
        text = sentences(
            f"At most {format_size(live)} requested and {recorded} reserved as recorded, of {limit} available",
            "without a replay it is unknown whether an allocation would fail",
        )
        return replace(verdict, headline=text)
    reserved = format_size(verdict.tried[0].peak_reserved_bytes)
    if refused is not None:
        failed = format_size(refused.requested_bytes)
        text = f"The failed request of {failed} would succeed, with {reserved} reserved of {limit} available, and what "
        return replace(verdict, headline=f"{text}would have come after it is unknown")
    peak = f"at most {format_size(live)} requested and {reserved} reserved"
    text = f"No allocation would fail: {peak} of {limit} available"
    return replace(verdict, headline=sentences(text, f"{recorded} were reserved as recorded"))
