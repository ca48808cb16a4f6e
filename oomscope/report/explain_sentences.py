"""The sentences of an explained snapshot, shared by its terminal and HTML reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oomscope.report.sentences import category_text, conf_variable, count, moment_text, one_line, percent
from oomscope.snapshot.explain.composition import Composition
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.sites import Site
from oomscope.units import format_size

NOTHING = "nothing was allocated; was CUDA used in this process?"
"""What is said of a file that knows no device."""
WORTH_A_SETTING = 0.05
"""Share of the reserved memory that a setting must save before it is recommended where nothing failed."""


def heading_text(explanation: Explanation, device: DeviceExplanation) -> str:
    """Return which recording is explained, and by whose allocator's rules."""
    rank = [] if explanation.rank is None else [f"rank {explanation.rank}"]
    settings = device.conf or "default allocator settings"
    parts = [one_line(explanation.file), *rank, f"device {device.index}", count(device.events, "event"), settings]
    return " · ".join(parts)


def line_text(site: Site | None) -> str:
    """Return ``…/model/mlp.py:88 forward``, or what stands for a block without a Python line."""
    if site is None:
        return "an unknown line"
    return site.brief


def _at(site: Site | None) -> str:
    return f", at {line_text(site)}" if site else ""


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
        return f"SURVIVED {failed}, {format_size(device.peak.requested_bytes)} requested at most"
    if device.served:
        failed = format_size(device.served.requested_bytes)
        return f"WOULD PASS on this card where the recorded run failed: it serves the request of {failed}"
    return f"NO FAILED ALLOCATION, {format_size(device.peak.requested_bytes)} requested at most"


def when_text(device: DeviceExplanation) -> str:
    """Return the moment that the tables are of."""
    if device.failure is not None:
        return "at the failed allocation"
    return "at the end" if device.shows_end_only else "at the peak"


def facts(device: DeviceExplanation) -> Iterator[tuple[str, str]]:
    """Yield the names of what is known of a device's memory in all, and what is known."""
    yield "Peak", peak_text(device)
    yield "Reserved", reserved_text(device)
    if unused := unused_text(device):
        yield "Overhead", unused
    parts = device.failure or device.composition
    if parts.bytes:
        yield "Sizes", sizes_text(parts)
    yield "Available", available_text(device)
    if replayed := replay_text(device):
        yield "Replay", replayed
    if iterations := iterations_text(device):
        yield "Iterations", iterations


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
    text += f" at event {device.peak.event:,}"
    return f"{text}{_at(place.site)}" + (f" ({category_text(place.category)})" if place.category else "")


def reserved_text(device: DeviceExplanation) -> str:
    """Return what the allocator held at the peak, and how much of that nothing live explains."""
    held, overhead = format_size(device.peak.reserved_bytes), device.overhead_at_peak_bytes
    if overhead < 0:
        return f"{held} at the peak, less than what is live: the events contradict the segments"
    share = percent(overhead, device.peak.reserved_bytes)
    when = "at the end" if device.shows_end_only else "at the peak"
    return f"{held} {when}{_on_its_own_card(device)}, {format_size(overhead)} ({share}) overhead"


def _on_its_own_card(device: DeviceExplanation) -> str:
    """Return what tells recorded numbers from those of the card that would refuse a request."""
    return " as recorded" if device.is_predicted else ""


def available_text(device: DeviceExplanation) -> str:
    """Return how much the process could hold and where that is known from."""
    if device.available_bytes is None:
        return "unknown: give --limit SIZE or --gpu NAME to judge against a card"
    return f"{format_size(device.available_bytes)}, by {device.available_source}"


def replay_text(device: DeviceExplanation) -> str | None:
    """Return how faithfully the emulated allocator repeats the recording; None where there is nothing to repeat."""
    if device.fidelity is None:
        return None
    share = f"{100 * device.fidelity:.1f} %"
    return f"repeats {share} of the recorded segment events, by the rules of torch {device.torch_version}"


def iterations_text(device: DeviceExplanation) -> str | None:
    """Return how many iterations the recording shows and what tells so; None where it shows none."""
    found = device.iterations
    if not found.count:
        return None
    return f"the ends of {found.count:,}, told by {found.source} ({found.confidence} confidence)"


def unused_text(device: DeviceExplanation) -> str | None:
    """Return how overhead divides, and at which moment; None where the segments of then are unknown."""
    pins = device.pins
    if pins is None or not device.peak.reserved_bytes:
        return None
    return (
        f"{when_text(device)} {format_size(pins.pinned_bytes)} in segments that live blocks pin, "
        f"{format_size(pins.idle_bytes)} in empty segments, {format_size(pins.rounding_bytes)} rounding"
    )


def sizes_text(parts: Composition) -> str:
    """Return requested bytes by the size of the request: ``12 MiB in 181 blocks up to 1 MiB, …``."""
    return ", ".join(f"{format_size(row.bytes)} in {count(row.count, 'block')} {row.label}" for row in parts.sizes)


def advice_text(device: DeviceExplanation) -> str | None:
    """Return the setting worth making where nothing failed; a failure's advice comes with its verdict."""
    if device.served and _others_held(device):
        return "find out with nvidia-smi what else held memory of the card, and end it or use another card"
    if device.verdict.kind != "headroom" or not device.verdict.tried:
        return None
    recorded, *others = device.verdict.tried
    best = max((fix for fix in others if fix.survives), key=lambda fix: fix.saved_bytes, default=recorded)
    saved = best.saved_bytes if recorded.survives else 0
    if saved <= WORTH_A_SETTING * recorded.peak_reserved_bytes or _has_room(device):
        return None
    return f"set {conf_variable(device)}={best.conf}: the same allocations then reserve {format_size(saved)} less"


def _others_held(device: DeviceExplanation) -> int:
    """Return the bytes that were not available to the process when it failed, if the card named is the recorded one."""
    had = device.served.available_bytes if device.served else None
    return max(0, device.available_bytes - had) if had is not None and device.available_bytes is not None else 0


def _has_room(device: DeviceExplanation) -> bool:
    """Whether a tenth of what the process may hold was never taken, so that no setting is needed."""
    recorded = device.verdict.tried[0].peak_reserved_bytes
    return device.available_bytes is not None and 10 * recorded < 9 * device.available_bytes


def tried_title(device: DeviceExplanation) -> str:
    """Return what stands over the table of settings: on which card they were tried, where the file tells none."""
    title = "Allocator settings tried on the same allocations"
    if device.available_bytes is not None:
        return title
    if device.failure is not None:
        return f"{title}, on the largest card on which the request fails as recorded"
    return f"{title}, on a card that refuses nothing"


def ranks_status_text(found: RankSet) -> str:
    """Return which ranks failed, or that none did and how far they are apart."""
    failed = sorted(row.rank for row in found.rows if row.failed_bytes is not None)
    if failed:
        listed = ", ".join(map(str, failed))
        return f"OUT OF MEMORY on {count(len(failed), 'rank')} of {len(found.rows)}: {listed}"
    most, least = (choose(row.reserved_bytes for row in found.rows) for choose in (max, min))
    return f"NO FAILED ALLOCATION on any rank; reserved at most {format_size(most)}, at least {format_size(least)}"


def differing_categories(rows: Sequence[RankRow]) -> list[str]:
    """Return the categories in which ranks are apart by more than 1 % of the largest peak, widest apart first."""
    names = {name for row in rows for name in row.categories}
    spread = {}
    for name in names:
        sizes = [row.categories.get(name, 0) for row in rows]
        spread[name] = max(sizes) - min(sizes)
    least = max(row.requested_bytes for row in rows) // 100
    return sorted((name for name in names if spread[name] > least), key=lambda name: (-spread[name], name))
