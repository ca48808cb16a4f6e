"""An explained snapshot: its eight lines, its full report, and the sentences that say what a recording shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final, Literal, NamedTuple

from oomscope.allocator.settings import parse_version
from oomscope.report import parts
from oomscope.report.parts import bar, columns, line
from oomscope.report.sentences import (
    category_text,
    count,
    left_out_texts,
    moment_text,
    one_line,
    percent,
    site_text,
    unread_text,
)
from oomscope.report.stacks import NO_STACKS, Stacks
from oomscope.report.verdict_text import (
    NEW_VARIABLE,
    SHOWN,
    advice_text,
    fix_outcome,
    fix_table,
    holders,
    line_table,
    verdict_line,
    verdict_parts,
)
from oomscope.snapshot.explain.composition import Composition
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.pins import PinnedSegment, Pins
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.sites import Site, brief_name, over_layers
from oomscope.units import MiB, format_size

WORTH_SHOWING: Final = MiB
"""Unused bytes below which what pins them is not shown."""
WORTH_A_SETTING: Final = 0.05
"""Share of the reserved memory that a setting must save before it is recommended where nothing failed."""
GROWING_FROM: Final = 4
"""Iterations whose blocks must be alive side by side before a line is said to grow."""
WORTH_GROWING: Final = MiB
"""Bytes an iteration below which growth is not mentioned."""
GROWN_PART: Final = 10
"""A line that grows is mentioned where it holds this part of what is live."""
FEW: Final = 5
"""Rows of what is only a second look at the same bytes."""
FLAT: Final = 8
"""A curve on a terminal has so many heights; one whose values all reach the last of them is told in words."""
OLD_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
_NEW_SINCE: Final = (2, 10)
_FOUND_BEFORE_2_12: Final = "2.11"
"""Stands for every torch up to 2.11, wherever rules were found by what repeats the recording best."""


class PageDetail(NamedTuple):
    """What a page shows of a device beyond the report on a terminal."""

    figures: Iterable[parts.Figure] = ()
    stacks: Stacks = NO_STACKS
    """Those behind its tables of lines."""


Detail = Callable[[DeviceExplanation], PageDetail]


def explain_report(
    found: Explanation | RankSet,
    *,
    top: int = SHOWN,
    full: bool = True,
    shown: int = SHOWN,
    detail: Detail = lambda _: PageDetail(),
) -> parts.Report:
    """Return the report of one file, or of a folder's ranks side by side and then of the worst.

    ``top`` lines of code and ``shown`` rows of other tables, the rest as one row; not ``full``: the first eight lines
    alone.
    """
    return parts.report(_all_parts(found, top, shown, detail, full=full))


def _all_parts(
    found: Explanation | RankSet, top: int, shown: int, detail: Detail, *, full: bool
) -> Iterator[parts.Part]:
    if isinstance(found, RankSet):
        yield from _rank_parts(found)
        found = found.worst
    if not found.devices:
        yield line(f"{one_line(found.file)}: nothing was allocated; was CUDA used in this process?")
    devices = sorted(found.devices, key=lambda each: each.verdict.kind == "headroom")  # those that failed first
    if len(devices) > 1:
        has_failed = devices[0].verdict.kind != "headroom"
        yield parts.status(devices_status_text(devices), "bad" if has_failed else "good")
    for device in devices:
        if full and len(devices) > 1:
            yield parts.Heading(text=f"Device {device.index}")
        elif device is not devices[0]:
            yield parts.BLANK
        yield from _device_parts(found, device, top, shown, detail(device)) if full else _summary(found, device)


def _summary(found: Explanation, device: DeviceExplanation) -> Iterator[parts.Part]:
    """Yield what a snapshot shows of a device, in at most eight lines, and the notes on it."""
    yield line(heading_text(found, device), "soft")
    yield _status(device)
    facts: list[tuple[str, str | parts.Line | list[tuple[str, str, str]]]] = []
    if device.verdict.kind != "headroom" or device.verdict.tags:
        facts.append(("Verdict", replace(verdict_line(device.verdict), label="")))
    if device.served:
        facts.append(("Verdict", device.verdict.headline))
    facts.append(("Peak", peak_text(device)))
    grows = _growing_text(device)
    if held := holders((device.failure or device.composition).sites):
        facts.append((f"Largest at {moment(device)}", held[:2] if grows else held))
    if grows:
        facts.append(("Grows", grows))
    if text := advice(device):
        facts.append(("What to do", parts.Line(strong=text)))
    yield parts.Facts(rows=facts)
    yield from map(parts.note, device.caveats)


def _growing_text(device: DeviceExplanation) -> str | None:
    """Return the line that holds most of what grows, where the verdict knows no leak and it is much of what is live."""
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


def _rank_parts(found: RankSet) -> Iterator[parts.Part]:
    yield line(f"{found.directory} · {count(len(found.rows), 'rank')}", "soft")
    has_failed = any(row.failed_bytes is not None for row in found.rows)
    yield parts.status(ranks_status_text(found), "bad" if has_failed else "good")
    yield rank_table(found.rows)
    for straggler in found.stragglers:
        yield line(f"rank {straggler.rank} {straggler.text}", "warn")
    for each in found.unread:
        yield line(f"{unread_text(each)}: left out", "warn")
    for text in left_out_texts(found.left_out):
        yield line(text, "warn" if text.endswith("their rank") else "soft")
    differing = differing_categories(found.rows)
    yield parts.Table(
        title="Where ranks differ, by category, each at its own peak",
        columns=columns("number:Rank", *(f"size:{category_text(name).capitalize()}" for name in differing)),
        rows=[(str(row.rank), *(row.categories.get(name, 0) for name in differing)) for row in found.rows]
        if differing
        else [],
    )
    yield parts.Heading(text=f"The worst rank, {found.rows[0].rank}")


def rank_table(ranks: Sequence[RankRow]) -> parts.Table:
    """Return one row a rank."""
    numbers = ("size:Requested", "size:Reserved", "size:Overhead", "count:Iterations", "count:Events")
    return parts.Table(
        title="Ranks, the worst first",
        columns=columns("number:Rank", "size:Failed asking for", *numbers, "File"),
        rows=[
            (
                *(
                    str(row.rank),
                    row.failed_bytes,
                    row.peak.requested_bytes,
                    row.peak.reserved_bytes,
                    row.overhead_at_peak_bytes,
                ),
                *(row.iterations or None, row.events, one_line(PurePath(row.file).name)),
            )
            for row in ranks
        ],
    )


def _device_parts(
    explanation: Explanation, device: DeviceExplanation, top: int, shown: int, detail: PageDetail
) -> Iterator[parts.Part]:
    yield line(heading_text(explanation, device), "soft")
    yield _status(device)
    has_card = device.available_bytes is not None
    yield from verdict_parts(device.verdict, has_card=has_card, variable=conf_variable(device))
    if setting := setting_advice(device):
        yield parts.advice(setting)
    yield parts.BLANK
    yield parts.Facts(rows=list(_facts(device)))
    yield from detail.figures
    held, when = device.failure or device.composition, when_text(device)
    if held.bytes:
        yield _category_table(held, f"Live {when}, by category")
        yield line_table(
            f"Live {when}, by line",
            held.sites,
            top,
            modules=not held.modules_are_files,
            name=table_name(device),
            stacks=detail.stacks,
        )
        kind = "file" if held.modules_are_files else "module"
        modules = parts.Table(
            title=f"Live {when}, by {kind}",
            columns=columns("size:Bytes", kind.capitalize()),
            rows=_module_rows(held) if len(held.modules) > 1 else [],
            is_sum=True,
        )
        yield parts.cut(modules, max(FEW, shown - SHOWN), kind)
    if device.pins and device.pins.pinned_bytes >= WORTH_SHOWING:
        yield from _pin_tables(device.pins, when, shown, detail.stacks)
    yield from _small_tables(device, shown, detail.stacks)
    if device.verdict.tried:
        yield _tried(device)
    yield from map(parts.note, device.caveats)


def table_name(device: DeviceExplanation) -> str:
    """Return the id of the table of code lines in a page, in which charts look lines up."""
    return f"sites-{device.index}"


def _status(device: DeviceExplanation) -> parts.Line:
    return parts.status(status_text(device), "good" if device.verdict.kind == "headroom" else "bad")


def _facts(device: DeviceExplanation) -> Iterator[tuple[str, str | parts.Curve]]:
    yield "Peak", peak_text(device)
    yield "Reserved", reserved_text(device)
    if unused := unused_text(device):
        yield "Overhead", unused
    held = device.failure or device.composition
    if held.bytes:
        yield (
            "Sizes",
            ", ".join(f"{format_size(row.bytes)} in {count(row.count, 'block')} {row.label}" for row in held.sizes),
        )
    yield "Available", available_text(device)
    if device.fidelity is not None:
        share = f"{100 * device.fidelity:.1f} %"
        yield "Replay", f"repeats {share} of the recorded segment events, by the rules of torch {device.torch_version}"
    if found := device.iterations.count:
        source, confidence = device.iterations.source, device.iterations.confidence
        by = "as the recording says" if confidence == "certain" else f"by {source} ({confidence} confidence)"
        yield "Iterations", f"{count(found, 'whole iteration')}, {by}"
    live = device.curves.requested
    if len(live) > 1:
        least, most = min(live), max(live)
        is_flat = least * FLAT >= most * (FLAT - 1)
        flat = f"flat: every part of it reaches {format_size(least)} to {format_size(most)} requested"
        yield "Timeline", flat if is_flat else parts.Curve(values=live)


def _category_table(held: Composition, title: str) -> parts.Table:
    total = sum(row.bytes for row in held.categories)
    return parts.Table(
        title=title,
        columns=columns("category:Category", "size:Bytes", "share:Share", "Confidence", "bar:"),
        rows=[
            (
                row.category,
                row.bytes,
                row.bytes / total if total else None,
                "-" if row.confidence == "none" else row.confidence,
                bar(row.bytes, total),
            )
            for row in held.categories
        ],
        total=(parts.Cell(text="all"), total, 1.0 if total else None, "", ""),
    )


def _pin_tables(pins: Pins, when: str, shown: int, stacks: Stacks) -> Iterator[parts.Table]:
    """Yield the lines whose blocks keep segments, and the largest segments that are mostly empty."""
    lines = parts.Table(
        title=f"What pins {format_size(pins.pinned_bytes)} of unused memory {when}, by the line that stays longest",
        columns=columns("size:Unused", "count:Segments", "size:Held there", "category:Category", "code:Line"),
        rows=[
            (row.unused_bytes, row.segments, row.held_bytes, row.category, stacks.cell(row.site, row.category))
            for row in pins.lines
        ],
        is_sum=True,
        hint="A segment goes back to the driver only when all of it is free.",
    )
    yield parts.cut(lines, shown, "line")
    emptiest = [segment for segment in pins.segments if 2 * segment.unused_bytes >= segment.total_bytes]
    yield parts.Table(
        title="The largest segments that are mostly empty",
        columns=columns("size:Unused", "size:Of", "Pool", "Held by"),
        rows=[
            (segment.unused_bytes, segment.total_bytes, segment.segment_type, _held_by(segment))
            for segment in emptiest[: max(FEW, shown - SHOWN)]
        ],
    )


def _held_by(segment: PinnedSegment) -> str:
    largest, *others = segment.pins
    held = f"{format_size(largest.bytes)} {category_text(largest.category)}, {largest.site.brief}"
    return f"{held}, and {count(len(others), 'other line')}" if others else held


def _small_tables(device: DeviceExplanation, shown: int, stacks: Stacks) -> Iterator[parts.Table]:
    """Yield what a stream still uses, private pools, and lines that grow; a table without rows is left out."""
    yield parts.Table(
        title="Freed, but in use by a stream at the peak",
        columns=columns("size:Bytes", "count:Blocks", "Stream", "code:Line"),
        rows=[
            (row.bytes, row.count, f"{row.stream:#x}" if row.stream else "default", stacks.cell(row.site))
            for row in device.pending[:shown]
        ],
    )
    yield parts.Table(
        title="Private pools at the end",
        columns=columns("Pool", "count:Segments", "size:Reserved", "size:In use"),
        rows=[
            (", ".join(map(str, pool.pool_id)), pool.segments, pool.reserved_bytes, pool.active_bytes)
            for pool in device.pools
        ],
    )
    yield parts.Table(
        title="Lines whose live blocks grow from iteration to iteration",
        columns=columns("size:An iteration", "size:Alive in all", "count:Blocks", "count:From iterations", "code:Line"),
        rows=[
            (row.bytes_per_iteration, row.bytes, row.count, row.iterations, stacks.cell(row.site))
            for row in device.suspects[:shown]
        ],
    )


def _tried(device: DeviceExplanation) -> parts.Table:
    title = "Allocator settings tried on the same allocations"
    verdict = device.verdict
    if device.available_bytes is not None:
        return fix_table(verdict, title, has_margin=not verdict.available_is_bound)
    return parts.Table(
        title=f"{title}, on a card that refuses nothing",
        columns=columns("Setting", "Outcome", "size:Peak reserved", "size:Above the live peak", ""),
        rows=[
            (
                fix.name,
                parts.Cell(text=fix_outcome(fix), tone="good" if fix.survives else "bad"),
                fix.peak_reserved_bytes,
                fix.peak_reserved_bytes - verdict.packing_lower_bound_bytes if fix.survives else "",
                fix.note,
            )
            for fix in verdict.tried
        ],
    )


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
    if device.served:
        failed = format_size(device.served.requested_bytes)
        return f"WOULD PASS on this card where the recorded run failed: it serves the request of {failed}"
    if retries := retries_on_card(device):
        emptied = "once" if retries == 1 else f"{retries:,} times"
        return f"PASSES on this card only by emptying its cache, {emptied}; {_highest(device)}"
    return f"NO FAILED ALLOCATION, {_highest(device)}"


def margin_bytes(device: DeviceExplanation) -> int | None:
    """Return what was never reserved of what the process may hold; None where it ran out, or that is unknown.

    Where the recorded run reserved more than the card has, what its replay there reserves counts.
    """
    if device.available_bytes is None or device.verdict.kind != "headroom":
        return None
    held, tried = device.peak.reserved_bytes or 0, device.verdict.tried
    if held > device.available_bytes and tried and tried[0].survives:
        held = tried[0].peak_reserved_bytes
    return device.available_bytes - held


def retries_on_card(device: DeviceExplanation) -> int:
    """Return how often the allocator must empty its cache on a card smaller than what the run reserved."""
    is_smaller = device.available_bytes is not None and (device.peak.reserved_bytes or 0) > device.available_bytes
    return device.verdict.tried[0].retries if is_smaller and device.verdict.tried else 0


def _highest(device: DeviceExplanation) -> str:
    """Return what was requested and reserved at most, and what the card has left beside it, or can have left."""
    requested, margin = format_size(device.peak.requested_bytes), margin_bytes(device)
    if margin is None or margin < 0 or device.available_bytes is None:
        return f"{requested} requested at most"
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
    return {"failure": "at the failed allocation", "end": "at the end", "peak": "at the peak"}[moment(device)]


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
    """Return what tells recorded numbers from those of the card that would refuse a request."""
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


def advice(device: DeviceExplanation) -> str | None:
    """Return what to do; None where there is nothing."""
    has_card, variable = device.available_bytes is not None, conf_variable(device)
    found = (advice_text(device.verdict, has_card=has_card, variable=variable), setting_advice(device))
    return "; ".join(filter(None, found)) or None


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


def _module_rows(held: Composition) -> list[parts.Row]:
    """Return bytes and name of each module or file, largest first; the equal modules of a list are one row."""
    sizes: Counter[str] = Counter()
    for row in held.modules:
        sizes[brief_name(row.module) if held.modules_are_files else over_layers(row.module)] += row.bytes
    return [(size, name) for name, size in sizes.most_common()]


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
    """Return the name that the torch of a recording reads, whichever of those that it may be it was."""
    is_old = device.version_source == "found" and device.torch_version == _FOUND_BEFORE_2_12
    return OLD_VARIABLE if is_old or parse_version(device.torch_version) < _NEW_SINCE else NEW_VARIABLE
