"""The difference of two snapshots: both peaks side by side, and the rows that sum to what is between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from oomscope.printable import one_line
from oomscope.report import parts
from oomscope.report.parts import columns, line
from oomscope.report.sentences import count, left_out_texts, moment_text, site_text, unread_text
from oomscope.report.stacks import NO_STACKS, Stacks
from oomscope.snapshot.accounting.attribution import NO_STACK, OLDER
from oomscope.snapshot.compare.changes import Change, LineChange, NamedChange
from oomscope.snapshot.compare.diff import DeviceDifference, Difference
from oomscope.snapshot.compare.side import Facts
from oomscope.snapshot.sites import brief_name, short_path
from oomscope.units import format_size

Item = TypeVar("Item")
By: TypeAlias = Literal["line", "category", "module", "size"]
SHOWN: Final = 12
"""Rows of a table on a terminal unless more are asked for."""
NUMBERS: Final = ("size:A", "size:B", "change:Difference", "number:Blocks")
STAND_INS: Final = frozenset({OLDER.function, NO_STACK.function})
"""Stand-ins for blocks without a known line, which are neither new nor gone as a line is."""


def diff_report(difference: Difference, *, by: By | None = None, shown: int = SHOWN) -> Iterator[parts.Part]:
    """Yield the device that grew most, after one line for each if there are several.

    Without ``by`` the tables by category and by line are shown. Rows beyond ``shown`` are one row, so that the sum
    holds.
    """
    yield from heading_parts(difference)
    worst = difference.devices[0]
    if len(difference.devices) > 1:
        why = ", which grew most" if worst.delta_bytes > 0 else ""
        yield line(f"{device_name(worst).capitalize()}{why}:", "soft")
    yield from device_parts(difference, worst, ("category", "line") if by is None else (by,), shown)
    yield from map(parts.note, not_compared(difference))


def heading_parts(difference: Difference) -> Iterator[parts.Part]:
    """Yield the files, and the peaks of all devices, the one that grew most first."""
    yield line(f"A  {one_line(difference.before_file)}", "soft")
    yield line(f"B  {one_line(difference.after_file)}", "soft")
    if len(difference.devices) > 1:
        what = "device" if difference.devices[0].rank is None else "rank"
        yield parts.Table(
            title=f"Peaks of requested memory by {what}",
            columns=columns("Device", *NUMBERS[:3]),
            rows=[
                (
                    device_name(device),
                    *(device.before.peak.requested_bytes, device.after.peak.requested_bytes, device.delta_bytes),
                )
                for device in difference.devices
            ],
        )
        yield parts.BLANK


def device_parts(
    difference: Difference,
    device: DeviceDifference,
    tables: Sequence[By],
    shown: int,
    *,
    figures: Iterable[parts.Figure] = (),
    stacks: Stacks = NO_STACKS,
) -> Iterator[parts.Part]:
    """Yield what differs on one device: the answer, both peaks, and the tables that were asked for."""
    tone = "bad" if device.delta_bytes > 0 else "good" if device.delta_bytes < 0 else ""
    yield parts.status(headline(device, difference.phase), tone)
    yield parts.BLANK
    yield _facts_table(device)
    yield parts.Facts(rows=[("A's peak", place(device.before)), ("B's peak", place(device.after))])
    yield from figures
    for by in tables:
        if by == "line":
            yield line_table(device.lines, shown, stacks)
        else:
            named = {"category": device.categories, "module": device.modules, "size": device.sizes}[by]
            yield named_table(named, "size of block" if by == "size" else by, shown)
    if len(tables) > 1:
        yield _phase_table(device)
    yield from map(parts.note, remarks(device))


def headline(device: DeviceDifference, phase: str = "") -> str:
    """Return the answer in one line."""
    peak = f"PEAK IN {phase.upper()}" if phase else "PEAK"
    if device.before.idle_before_bytes or device.after.idle_before_bytes:
        peak = f"RECORDED {peak}"
    before, after = format_size(device.before.peak.requested_bytes), format_size(device.after.peak.requested_bytes)
    if device.delta_bytes:
        verb = "GREW" if device.delta_bytes > 0 else "SHRANK"
        return f"THE {peak} {verb} by {format_size(abs(device.delta_bytes))}: {before} requested in A, {after} in B"
    what = "and of the same lines" if device.is_empty else "but of other lines"
    overhead = device.after.overhead_at_peak_bytes - device.before.overhead_at_peak_bytes
    more = f"; overhead {format_size(overhead, signed=True)}" if overhead else ""
    return f"THE {peak} IS EQUAL: {before} requested, {what}{more}"


def _facts_table(device: DeviceDifference) -> parts.Table:
    before, after = device.before, device.after
    sizes = (
        ("Peak of requested memory", before.peak.requested_bytes, after.peak.requested_bytes),
        ("Overhead at that peak", before.overhead_at_peak_bytes, after.overhead_at_peak_bytes),
        ("Reserved at that peak", before.reserved_at_peak_bytes, after.reserved_at_peak_bytes),
        ("Most reserved at any time", before.peak.reserved_bytes or 0, after.peak.reserved_bytes or 0),
    )
    more = after.blocks - before.blocks
    blocks = ("Blocks at the peak", f"{before.blocks:,}", f"{after.blocks:,}", f"{more:+,}" if more else "0")
    return parts.Table(
        columns=columns("", *NUMBERS[:3]), rows=[*((name, old, new, new - old) for name, old, new in sizes), blocks]
    )


def place(side: Facts) -> str:
    """Return when and at which line the peak stood."""
    if side.event < 0:
        return "at the end" if not side.events else "before the first event"
    when = f"event {side.event:,} of {side.events:,}"
    if side.phase or side.iteration >= 0:
        when = f"{moment_text(side.iteration, side.phase, side.microbatch)}, {when}"
    return f"{when}, at {site_text(side.site)}" if side.site else when


def line_table(rows: Sequence[LineChange], shown: int, stacks: Stacks = NO_STACKS) -> parts.Table:
    """Return the lines that changed most, those that did not as one row, and the sum, which is that of the peaks."""
    changed, same = ([row for row in rows if row.differs is differs] for differs in (True, False))
    top, rest = cut(changed, shown)
    cells: list[parts.Row] = [
        (*_numbers([row]), row.category, stacks.cell(row.site, row.category, line_name(row))) for row in top
    ]
    if rest:
        cells.append((*_numbers(rest), "", count(len(rest), "further line")))
    if same:
        moved = sum(row.moved for row in same)
        text = count(len(same), "line unchanged", "lines unchanged")
        moved_text = "moved" if moved == len(same) else f"{moved:,} of them moved"
        cells.append((*_numbers(same), "", f"{text}, {moved_text}" if moved else text))
    return parts.Table(
        title="Requested at the peak, by line",
        columns=columns(*NUMBERS, "category:Category", "code:Line"),
        rows=cells,
        total=(*_numbers(rows), "", "all"),
    )


def named_table(rows: Sequence[NamedChange], title: str, shown: int) -> parts.Table:
    """Return the names that changed most, the others as one row, and the sum, which is that of the peaks."""
    top, rest = cut(rows, shown)
    return parts.Table(
        title=f"Requested at the peak, by {title}",
        columns=columns(*NUMBERS, f"{'category' if title == 'category' else 'text'}:{title.capitalize()}"),
        rows=[
            *((*_numbers([row]), row.name or "(not known)") for row in top),
            *([(*_numbers(rest), parts.Cell(text=f"{len(rest):,} further"))] if rest else []),
        ],
        total=(*_numbers(rows), parts.Cell(text="all")),
    )


def cut(rows: Sequence[Item], shown: int) -> tuple[Sequence[Item], Sequence[Item]]:
    """Return the rows to show, and those to add up; one alone is shown."""
    return (rows[:shown], rows[shown:]) if len(rows) > shown + 1 else (rows, ())


def _numbers(rows: Sequence[Change]) -> tuple[int, int, int, str]:
    """Return A, B, the difference and the blocks of all ``rows`` together."""
    before, after = sum(row.before_bytes for row in rows), sum(row.after_bytes for row in rows)
    old, new = sum(row.before_count for row in rows), sum(row.after_count for row in rows)
    return before, after, after - before, f"{old:,}" if old == new else f"{old:,} → {new:,}"


def _phase_table(device: DeviceDifference) -> parts.Table:
    return parts.Table(
        title="Peak of each phase; these do not sum",
        columns=columns("Phase", *NUMBERS[:3]),
        rows=[
            (
                row.name.replace("_", " ") or "(not known)",
                row.before_bytes,
                row.after_bytes,
                "" if row.before_bytes is None or row.after_bytes is None else row.after_bytes - row.before_bytes,
            )
            for row in device.phases
        ],
    )


def remarks(device: DeviceDifference) -> Iterator[str]:
    """Yield what must be known to read the tables rightly."""
    before, after = device.before, device.after
    if before.phase and after.phase and before.phase != after.phase:
        yield (
            f"the peak moved from {before.phase} to {after.phase}, where other things are live; --phase {after.phase} "
            "compares what is alike"
        )
    for name, side in (("A", before), ("B", after)):
        if not side.events:
            yield f"{name} holds no events: its memory at the end is taken as its peak"
        elif side.older_bytes:
            size = format_size(side.older_bytes)
            yield f"{size} of {name}'s peak were allocated before its recording began: their lines are unknown"
        if side.idle_before_bytes:
            size = format_size(side.idle_before_bytes)
            yield f"{size} reserved before {name}'s recording are never used in it: an earlier peak is not in {name}"
        if side.failed_bytes is not None:
            yield f"{name} failed asking for {format_size(side.failed_bytes)}; its peak does not contain that request"
    inferred = [name for name, side in (("A", before), ("B", after)) if side.inferred]
    if inferred:
        yield f"categories and phases of {' and '.join(inferred)} are inferred from stacks and lifetimes"


def not_compared(difference: Difference) -> Iterator[str]:
    """Yield which devices or ranks have no counterpart, or one that cannot be read."""
    what = "device" if difference.devices[0].rank is None else "rank"
    for name, numbers in (("A", difference.only_before), ("B", difference.only_after)):
        if numbers:
            yield f"only {name} has {', '.join(f'{what} {number}' for number in numbers)}: not compared"
    for each in difference.unread:
        yield f"{unread_text(each)}: its rank is not compared"
    yield from left_out_texts(difference.left_out)


def device_name(device: DeviceDifference) -> str:
    """Return ``device 0``, ``rank 2, device 0``, or ``device 0 of A, device 3 of B``."""
    before, after = device.before.device, device.after.device
    name = f"device {before}" if before == after else f"device {before} of A, device {after} of B"
    return name if device.rank is None else f"rank {device.rank}, {name}"


def line_name(row: LineChange) -> str:
    """Return ``…/train/model.py:88 forward``, with both places where the line moved, and whether it is new or gone."""
    if row.site.function in STAND_INS:
        return row.site.function
    if row.presence != "both":
        return f"{site_text(row.site)} ({row.presence})"
    if row.was is None or not row.moved:
        return site_text(row.site)
    if row.was.file.rpartition("/")[2] != row.site.file.rpartition("/")[2]:
        return f"{site_text(row.was)} → {site_text(row.site)}"
    function = brief_name(row.site.function)
    if row.was.function != row.site.function:
        function = f"{brief_name(row.was.function)} → {function}"
    return f"{brief_name(short_path(row.site.file))}:{row.was.line}→{row.site.line} {function}"
