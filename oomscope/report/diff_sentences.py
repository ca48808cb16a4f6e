"""The sentences of a difference that terminal and HTML reports share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomscope.report.sentences import count, moment_text, site_text, unread_text
from oomscope.snapshot.attribution import NO_STACK, OLDER
from oomscope.snapshot.compare.changes import LineChange
from oomscope.snapshot.compare.diff import DeviceDifference, Difference
from oomscope.snapshot.compare.side import Facts
from oomscope.snapshot.sites import short_path
from oomscope.units import format_size

STAND_INS: Final = frozenset({OLDER.function, NO_STACK.function})
"""What stands for blocks of which no line is known, and is neither new nor gone as a line is."""


def name(text: str) -> str:
    """Return a category, module or size for people."""
    return text.replace("_", " ") or "(not known)"


def headline(device: DeviceDifference, phase: str = "") -> str:
    """Return the answer in one line."""
    peak = f"PEAK IN {phase.upper()}" if phase else "PEAK"
    before, after = format_size(device.before.requested_bytes), format_size(device.after.requested_bytes)
    if device.delta_bytes > 0:
        return f"THE {peak} GREW by {format_size(device.delta_bytes)}: {before} requested in A, {after} in B"
    if device.delta_bytes < 0:
        return f"THE {peak} SHRANK by {format_size(-device.delta_bytes)}: {before} requested in A, {after} in B"
    what = "and of the same lines" if device.is_empty else "but of other lines"
    overhead = device.after.overhead_bytes - device.before.overhead_bytes
    more = f"; overhead {format_size(overhead, signed=True)}" if overhead else ""
    return f"THE {peak} IS EQUAL: {before} requested, {what}{more}"


def facts(device: DeviceDifference) -> list[tuple[str, str, str, str]]:
    """Return what is compared beside the tables: its name, A, B, and the difference where there is one."""
    before, after = device.before, device.after
    sizes = (
        ("Peak of requested memory", before.requested_bytes, after.requested_bytes),
        ("Overhead at that peak", before.overhead_bytes, after.overhead_bytes),
        ("Reserved at that peak", before.reserved_bytes, after.reserved_bytes),
        ("Most reserved at any time", before.peak_reserved_bytes, after.peak_reserved_bytes),
    )
    rows = [(name, format_size(old), format_size(new), format_size(new - old, signed=True)) for name, old, new in sizes]
    more = after.blocks - before.blocks
    return [
        *rows,
        ("Blocks at the peak", f"{before.blocks:,}", f"{after.blocks:,}", f"{more:+,}" if more else "0"),
    ]


def place(side: Facts) -> str:
    """Return when and at which line the peak stood."""
    if side.event < 0:
        return "at the end" if not side.events else "before the first event"
    when = f"event {side.event:,} of {side.events:,}"
    if side.phase or side.iteration >= 0:
        when = f"{moment_text(side.iteration, side.phase, side.microbatch)}, {when}"
    return f"{when}, at {site_text(side.site)}" if side.site else when


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
            yield f"{name} holds no events: what it held at the end stands for its peak"
        elif side.older_bytes:
            yield (
                f"{format_size(side.older_bytes)} of {name}'s peak were alive before its recording began, and no line "
                "stands for them"
            )
        if side.failed_bytes is not None:
            yield (
                f"{name} failed asking for {format_size(side.failed_bytes)}; its peak is of what was live, without "
                "that request"
            )
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


def device_name(device: DeviceDifference) -> str:
    """Return ``device 0``, ``rank 2, device 0``, or ``device 0 of A, device 3 of B``."""
    before, after = device.before.device, device.after.device
    name = f"device {before}" if before == after else f"device {before} of A, device {after} of B"
    return name if device.rank is None else f"rank {device.rank}, {name}"


def blocks(before: int, after: int) -> str:
    """Return ``12`` or ``12 → 14``."""
    return f"{before:,}" if before == after else f"{before:,} → {after:,}"


def line(row: LineChange) -> str:
    """Return ``…/train/model.py:88 forward``, with both places where the line moved, and whether it is new or gone."""
    if row.site.function in STAND_INS:
        return row.site.function
    if row.presence != "both":
        return f"{site_text(row.site)} ({row.presence})"
    if row.was is None or not row.moved:
        return site_text(row.site)
    if row.was.file.rpartition("/")[2] != row.site.file.rpartition("/")[2]:
        return f"{site_text(row.was)} → {site_text(row.site)}"
    function = row.site.function
    if row.was.function != function:
        function = f"{row.was.function} → {function}"
    return f"{short_path(row.site.file)}:{row.was.line}→{row.site.line} {function}"


def unchanged(rows: list[LineChange]) -> str:
    """Return how many lines hold what they did, and how many of them moved."""
    moved = sum(row.moved for row in rows)
    text = count(len(rows), "line unchanged", "lines unchanged")
    return f"{text}, {moved:,} of them moved" if moved else text
