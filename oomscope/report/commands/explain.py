"""An explained snapshot: its eight lines, and its full report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final, NamedTuple

from oomscope.printable import one_line
from oomscope.report import parts
from oomscope.report.commands.explain_sentences import (
    advice,
    available_text,
    conf_variable,
    depends_on_earlier,
    devices_status_text,
    differing_categories,
    growing_text,
    heading_text,
    less_text,
    moment,
    peak_text,
    ranks_status_text,
    reserved_text,
    setting_advice,
    status_text,
    unused_text,
    when_text,
)
from oomscope.report.parts import columns, line
from oomscope.report.sentences import (
    category_text,
    count,
    left_out_texts,
    unread_text,
)
from oomscope.report.stacks import NO_STACKS, Stacks
from oomscope.report.verdict_text import (
    SHOWN,
    category_table,
    fix_outcome,
    fix_table,
    holders,
    line_table,
    tried_title,
    verdict_line,
    verdict_parts,
)
from oomscope.snapshot.explain.composition import Composition
from oomscope.snapshot.explain.explanation import DeviceExplanation, Explanation
from oomscope.snapshot.explain.pins import PinnedSegment, Pins
from oomscope.snapshot.explain.rank_set import RankRow, RankSet
from oomscope.snapshot.sites import brief_name, over_layers
from oomscope.units import MiB, format_size

WORTH_SHOWING: Final = MiB
"""Unused bytes below which what pins them is not shown."""
FEW: Final = 5
"""Rows of a table that shows the same bytes a second time."""
FLAT: Final = 8
"""Heights of a curve on a terminal; one whose values all reach the last of them is replaced by words."""


class PageDetail(NamedTuple):
    """What a page shows of a device beyond the report on a terminal."""

    figures: Iterable[parts.Figure] = ()
    stacks: Stacks = NO_STACKS
    """Stacks behind the tables of lines."""


Detail = Callable[[DeviceExplanation], PageDetail]


def explain_report(
    found: Explanation | RankSet,
    *,
    top: int = SHOWN,
    full: bool = True,
    shown: int = SHOWN,
    detail: Detail = lambda _: PageDetail(),
) -> Iterator[parts.Part]:
    """Yield the report of one file, or of a folder's ranks side by side and then of the worst.

    ``top`` lines of code and ``shown`` rows of other tables, the rest as one row; not ``full``: the first eight lines
    alone.
    """
    if isinstance(found, RankSet):
        yield from _rank_parts(found)
        found = found.worst
    if not found.devices:
        yield line(f"{one_line(found.file)}: nothing was allocated; was CUDA used in this process?")
    devices = sorted(found.devices, key=lambda each: each.verdict.kind == "headroom")  # failed devices first
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
    facts: list[tuple[str, parts.Known]] = []
    if device.verdict.kind != "headroom" or device.verdict.tags:
        facts.append(("Verdict", replace(verdict_line(device.verdict), label="")))
    if device.served:
        facts.append(("Verdict", device.verdict.headline))
    facts.append(("Peak", peak_text(device)))
    grows = growing_text(device)
    if held := holders((device.failure or device.composition).sites):
        facts.append((f"Largest at {moment(device)}", held[:2] if grows else held))
    if grows:
        facts.append(("Grows", grows))
    if text := advice(device):
        facts.append(("What to do", parts.Line(strong=text)))
    yield parts.Facts(rows=facts)
    yield from map(parts.note, device.caveats)


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
    if earlier := sorted(row.rank for row in found.rows if row.idle_before_bytes):
        ranks = f"rank{'s' if len(earlier) > 1 else ''} {', '.join(map(str, earlier))}"
        yield line(f"an earlier peak, before the recording began, is not in what is read of {ranks}", "warn")
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
    yield from verdict_parts(device.verdict, has_card=has_card, variable=conf_variable(device), less=less_text(device))
    if setting := setting_advice(device):
        yield parts.advice(setting)
    yield parts.BLANK
    yield parts.Facts(rows=list(_facts(device)))
    yield from detail.figures
    held, when = device.failure or device.composition, when_text(device)
    if held.bytes:
        yield category_table(
            {row.category: row.bytes for row in held.categories},
            f"Live {when}, by category",
            {row.category: "-" if row.confidence == "none" else row.confidence for row in held.categories},
        )
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
    tone = "warn" if depends_on_earlier(device) else "good" if device.verdict.kind == "headroom" else "bad"
    return parts.status(status_text(device), tone)


def _facts(device: DeviceExplanation) -> Iterator[tuple[str, parts.Known]]:
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
        by = "from the recording" if confidence == "certain" else f"by {source} ({confidence} confidence)"
        yield "Iterations", f"{count(found, 'whole iteration')}, {by}"
    live = device.curves.requested
    if len(live) > 1:
        least, most = min(live), max(live)
        is_flat = least * FLAT >= most * (FLAT - 1)
        flat = f"flat: every part of it reaches {format_size(least)} to {format_size(most)} requested"
        yield "Timeline", flat if is_flat else parts.Curve(values=live)


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
    verdict, title = device.verdict, tried_title(device.verdict)
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


def _module_rows(held: Composition) -> list[parts.Row]:
    """Return bytes and name of each module or file, largest first; the equal modules of a list are one row."""
    sizes: Counter[str] = Counter()
    for row in held.modules:
        sizes[brief_name(row.module) if held.modules_are_files else over_layers(row.module)] += row.bytes
    return [(size, name) for name, size in sizes.most_common()]
