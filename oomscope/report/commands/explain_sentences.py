"""The sentences that say what a recording shows, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from oomscope.allocator.settings import parse_version
from oomscope.printable import one_line
from oomscope.report.sentences import category_text, count, moment_text, percent, site_text
from oomscope.report.verdict_text import advice_text
from oomscope.report.what_to_reduce import BATCH_PHASES, step_remedies, what_to_reduce
from oomscope.snapshot.accounting.attribution import AT_END, AT_FAILURE, AT_PEAK
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.sites import Site
from oomscope.torch_versions import CONF_VARIABLE, OLD_CONF_VARIABLE
from oomscope.units import MiB, format_size

WORTH_A_SETTING: Final = 0.05
"""Share of the reserved memory that a setting must save before it is recommended where nothing failed."""
GROWING_FROM: Final = 4
"""Iterations whose blocks must be alive side by side before a line is said to grow."""
WORTH_GROWING: Final = MiB
"""Bytes an iteration below which growth is not mentioned."""
GROWN_PART: Final = 10
"""Divisor of the live bytes: a line that grows is mentioned if it holds that part of them."""
_UNSURE: Final = ("none", "low")
"""Confidences of a category on which no advice is based."""
_NEW_SINCE: Final = (2, 10)
_FOUND_BEFORE_2_12: Final = "2.11"
"""Version for every torch up to 2.11, if the rules were found by what repeats the recording best."""


def heading_text(explanation: Explanation, device: DeviceExplanation) -> str:
    """Return which recording is explained, and by whose allocator's rules."""
    rank = [] if explanation.rank is None else [f"rank {explanation.rank}"]
    settings = device.conf or "default allocator settings"
    parts = [one_line(explanation.file), *rank, f"device {device.index}", count(device.events, "event"), settings]
    return " · ".join(parts)


def _at(site: Site | None) -> str:
    return f", at {site.brief}" if site else ""


def status_text(device: DeviceExplanation) -> str:
    """Return the answer in one line: out of memory, or how much was in use at most."""
    verdict = device.verdict
    if verdict.kind != "headroom" and verdict.requested_bytes is not None:
        what = "WOULD RUN OUT OF MEMORY on this card," if device.is_predicted else "OUT OF MEMORY"
        text = f"{what} asking for {format_size(verdict.requested_bytes)}"
        place = device.failed_at
        if place is None:
            return text
        when = f" in {moment_text(place.iteration, place.phase)}" if place.phase or place.iteration >= 0 else ""
        return f"{text}{when}{_at(place.site)}"
    if verdict.kind != "headroom":
        return f"WOULD NOT FIT on this card: {format_size(verdict.live_requested_bytes)} requested at most"
    if device.shows_end_only:
        return f"IN USE when the snapshot was written: {format_size(device.peak.requested_bytes)}"
    if device.survived_failures:
        failed = count(device.survived_failures, "failed allocation")
        return f"SURVIVED {failed}, {_highest(device)}"
    return _on_named_card(device) or f"NO FAILED ALLOCATION, {_highest(device)}"


def _on_named_card(device: DeviceExplanation) -> str | None:
    """Return the answer where the card that the user names changes it; None elsewhere."""
    if depends_on_earlier(device):
        before, card = format_size(device.reserved_before_bytes), format_size(device.available_bytes or 0)
        return f"MAY NOT FIT: {_highest(device)}, but {before} had been reserved before it, of {card} available"
    if device.served:
        failed = format_size(device.served.requested_bytes)
        return f"WOULD PASS on this card where the recorded run failed: it serves the request of {failed}"
    if retries := retries_on_card(device):
        emptied = "once" if retries == 1 else f"{retries:,} times"
        return f"PASSES on this card only by emptying its cache, {emptied}; {_highest(device)}"
    return None


def margin_bytes(device: DeviceExplanation) -> int | None:
    """Return what was never reserved of what the process may hold; None where it ran out, or that is unknown.

    Where the recorded run reserved more than the card has, what its replay there reserves counts.
    """
    if device.available_bytes is None or device.verdict.kind != "headroom" or depends_on_earlier(device):
        return None
    held, tried = device.peak.reserved_bytes or 0, device.verdict.tried
    if held > device.available_bytes and tried and tried[0].survives:
        held = tried[0].peak_reserved_bytes
    return device.available_bytes - held


def depends_on_earlier(device: DeviceExplanation) -> bool:
    """Return whether nothing failed, but the card has less than an earlier peak left reserved."""
    if device.available_bytes is None or device.verdict.kind != "headroom" or not device.idle_before_bytes:
        return False
    return device.reserved_before_bytes > device.available_bytes


def retries_on_card(device: DeviceExplanation) -> int:
    """Return how often the allocator must empty its cache on a card smaller than what the run reserved."""
    is_smaller = device.available_bytes is not None and (device.peak.reserved_bytes or 0) > device.available_bytes
    return device.verdict.tried[0].retries if is_smaller and device.verdict.tried else 0


def _highest(device: DeviceExplanation) -> str:
    """Return what was requested and reserved at most, and what the card has left beside it, or can have left."""
    requested, margin = format_size(device.peak.requested_bytes), margin_bytes(device)
    if margin is None or margin < 0 or device.available_bytes is None:
        return f"{requested} requested at most{' since the recording began' if device.idle_before_bytes else ''}"
    available = device.available_bytes
    held = f"{format_size(available - margin)} reserved at most"
    up_to = "up to " if device.available_is_bound else ""
    return f"{requested} requested and {held}, {up_to}{format_size(margin)} to spare of {up_to}{format_size(available)}"


def devices_status_text(devices: Sequence[DeviceExplanation]) -> str:
    """Return which devices of several failed, or that none did."""
    failed = [device for device in devices if device.verdict.kind != "headroom"]
    if not failed:
        return f"NO FAILED ALLOCATION on any of {len(devices)} devices"
    listed = ", ".join(str(device.index) for device in failed)
    is_recorded = any(device.failure is not None and not device.is_predicted for device in failed)
    what = "OUT OF MEMORY" if is_recorded else "WOULD RUN OUT OF MEMORY"
    return f"{what} on {count(len(failed), 'device')} of {len(devices)}: {listed}"


def when_text(device: DeviceExplanation) -> str:
    """Return the moment that the tables are of, in words."""
    return {"failure": AT_FAILURE, "end": AT_END, "peak": AT_PEAK}[moment(device)]


def moment(device: DeviceExplanation) -> Literal["failure", "end", "peak"]:
    """Return the moment that the tables are of."""
    return "failure" if device.failure is not None else "end" if device.shows_end_only else "peak"


def peak_text(device: DeviceExplanation) -> str:
    """Return how much was live at the peak, when, and by which line and for what the last block was made."""
    place = device.place
    text = f"{format_size(device.peak.requested_bytes)} requested{_on_its_own_card(device)}"
    if device.shows_end_only:
        return f"{text} when the snapshot was written"
    if place.site is None:
        return f"{text} as the recording began"
    if place.phase:
        text += f" in {moment_text(place.iteration, place.phase)}"
    text += f" at event {device.at_peak.event:,}"
    return f"{text}{_at(place.site)}" + (f" ({category_text(place.category)})" if place.category else "")


def reserved_text(device: DeviceExplanation) -> str:
    """Return what the allocator held at the peak, and how much of that nothing live explains."""
    held, overhead = format_size(device.at_peak.reserved_bytes), device.overhead_at_peak_bytes
    if overhead < 0:
        return f"{held} at the peak, less than what is live: the events contradict the segments"
    share = percent(overhead, device.at_peak.reserved_bytes)
    when = "at the end" if device.shows_end_only else "at the peak"
    return f"{held} {when}{_on_its_own_card(device)}, {format_size(overhead)} ({share}) overhead"


def _on_its_own_card(device: DeviceExplanation) -> str:
    """Return the clause that distinguishes recorded numbers from those of the card that would refuse a request."""
    return " as recorded" if device.is_predicted else ""


def available_text(device: DeviceExplanation) -> str:
    """Return how much the process could hold and where that is known from."""
    if device.available_bytes is None:
        return "unknown: give --limit SIZE or --gpu NAME to judge against a card"
    up_to = "up to " if device.available_is_bound else ""
    return f"{up_to}{format_size(device.available_bytes)}, by {device.available_source}"


def unused_text(device: DeviceExplanation) -> str | None:
    """Return how overhead divides, and at which moment; None where the segments of then are unknown."""
    pins = device.pins
    if pins is None or not device.at_peak.reserved_bytes:
        return None
    return (
        f"{when_text(device)} {format_size(pins.pinned_bytes)} in segments that live blocks pin, "
        f"{format_size(pins.idle_bytes)} in empty segments, {format_size(pins.rounding_bytes)} rounding"
    )


def growing_text(device: DeviceExplanation) -> str | None:
    """Return the line with most growing bytes, where these are much of what is live and the verdict knows no leak."""
    verdict, largest = device.verdict, next((suspect for suspect in device.suspects if suspect.site), None)
    if (
        verdict.leak is not None
        or largest is None
        or largest.iterations < GROWING_FROM
        or largest.bytes_per_iteration < WORTH_GROWING
        or GROWN_PART * largest.bytes < verdict.live_requested_bytes
    ):
        return None
    grows = f"{format_size(largest.bytes_per_iteration)} an iteration from {site_text(largest.site)}"
    alive = f"{format_size(largest.bytes)} from {count(largest.iterations, 'iteration')}"
    return f"{grows}, {alive}: a leak, or a cache that is not full yet"


def advice(device: DeviceExplanation) -> str | None:
    """Return what to do; None where there is nothing."""
    has_card, variable = device.available_bytes is not None, conf_variable(device)
    failure = advice_text(device.verdict, has_card=has_card, variable=variable, less=less_text(device))
    return "; ".join(filter(None, (failure, setting_advice(device)))) or None


def less_text(device: DeviceExplanation) -> str | None:
    """Return which memory to reduce, by the categories that are certain enough; None where something leaks.

    None also where no whole iteration is recorded: optimizer states and gradients are not all made before.
    """
    verdict, failed = device.verdict, device.failure
    if failed is None or not device.iterations.count or verdict.leak is not None or device.available_bytes is None:
        return None
    held = {"unknown": 0}
    for row in failed.categories:
        name = "unknown" if row.confidence in _UNSURE else row.category
        held[name] = held.get(name, 0) + row.bytes
    phase = device.failed_at.phase if device.failed_at else "unknown"
    return what_to_reduce(
        held,
        device.available_bytes,
        request_bytes=verdict.requested_bytes or 0,
        grows_with_batch=phase in BATCH_PHASES,
        step=step_remedies(phase, None),
    )


def setting_advice(device: DeviceExplanation) -> str | None:
    """Return the setting worth making where nothing failed; a failure's advice comes with its verdict."""
    if device.served and (held := _others_held(device)):
        find = f"find out with nvidia-smi what else held {format_size(held)} of it, and end that or use another card"
        if device.served.card_bytes is None:
            return f"if the run failed on a card of this size, {find}; on a larger one nothing needs to change"
        return f"the run failed on a card of this size: {find}"
    if device.verdict.kind != "headroom" or not device.verdict.tried:
        return None
    recorded, *others = device.verdict.tried
    best = max((fix for fix in others if fix.survives), key=lambda fix: fix.saved_bytes, default=recorded)
    saved = best.saved_bytes if recorded.survives else 0
    if saved <= WORTH_A_SETTING * recorded.peak_reserved_bytes or _has_room(device):
        return None
    return f"set {conf_variable(device)}={best.conf}: the same allocations then reserve {format_size(saved)} less"


def _others_held(device: DeviceExplanation) -> int:
    """Return the bytes of the named card that the process lacked when it failed; 0 where it failed on a smaller one."""
    had, card = (device.served.available_bytes, device.served.card_bytes) if device.served else (None, None)
    if had is None or device.available_bytes is None or (card is not None and card < device.available_bytes):
        return 0
    return max(0, device.available_bytes - had)


def _has_room(device: DeviceExplanation) -> bool:
    """Whether a tenth of what the process may hold was never taken, so that no setting is needed.

    Not where that has but an upper bound: a request was refused then, so that for a moment nothing was to spare.
    """
    if device.available_bytes is None or device.available_is_bound:
        return False
    return 10 * device.verdict.tried[0].peak_reserved_bytes < 9 * device.available_bytes


def ranks_status_text(found: RankSet) -> str:
    """Return which ranks failed, or that none did and how far they are apart."""
    failed = sorted(row.rank for row in found.rows if row.failed_bytes is not None)
    if failed:
        listed = ", ".join(map(str, failed))
        return f"OUT OF MEMORY on {count(len(failed), 'rank')} of {len(found.rows)}: {listed}"
    most, least = (choose(row.peak.reserved_bytes or 0 for row in found.rows) for choose in (max, min))
    return f"NO FAILED ALLOCATION on any rank; reserved at most {format_size(most)}, at least {format_size(least)}"


def differing_categories(rows: Sequence[RankRow]) -> list[str]:
    """Return the categories in which ranks are apart by more than 1 % of the largest peak, widest apart first."""
    names = {name for row in rows for name in row.categories}
    spread = {}
    for name in names:
        sizes = [row.categories.get(name, 0) for row in rows]
        spread[name] = max(sizes) - min(sizes)
    least = max(row.peak.requested_bytes for row in rows) // 100
    return sorted((name for name in names if spread[name] > least), key=lambda name: (-spread[name], name))


def conf_variable(device: DeviceExplanation) -> str:
    """Return the variable that the torch of a recording reads, as do all others that it may have been."""
    is_old = device.version_source == "found" and device.torch_version == _FOUND_BEFORE_2_12
    return OLD_CONF_VARIABLE if is_old or parse_version(device.torch_version) < _NEW_SINCE else CONF_VARIABLE
