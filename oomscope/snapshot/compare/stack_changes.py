"""Two programs' live bytes by stack side by side, so that their trees are one: the difference of two flame graphs.

Frames are the same line as in a table of lines (:mod:`oomscope.snapshot.compare.matching`), by what lies below them, so
that a stack is the same though code above its lines was edited or lies in another folder.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from oomscope.snapshot.compare.matching import Lines, Place, Unchanged, Use, none_unchanged, pair_lines
from oomscope.snapshot.sites import Frame
from oomscope.snapshot.stack_tree import LiveStacks, StackBytes


def side_by_side(
    before: LiveStacks, after: LiveStacks, names: tuple[str, str], unchanged: Unchanged = none_unchanged
) -> LiveStacks:
    """Return the first moment of both, under ``names``; lines are those of ``after`` where it has them."""
    pairs = pair_lines(_lines(before), _lines(after), unchanged=unchanged)
    twins = {old: new for old, new in pairs if old and new}
    numbers = {frame: number for number, frame in enumerate(after.frames)}
    known = [numbers.setdefault(_twin(frame, twins), len(numbers)) for frame in before.frames]
    totals: dict[tuple[tuple[int, ...], int, str, str], list[list[int]]] = {}
    for side, live in enumerate((before, after)):
        for row in live.rows:
            frames = row.frames if side else tuple(known[number] for number in row.frames)
            total = totals.setdefault((frames, row.line, row.module, row.category), [[0, 0], [0, 0]])
            total[0][side] += row.bytes[0]
            total[1][side] += row.blocks[0]
    found = (StackBytes(*key, *map(tuple, total)) for key, total in totals.items() if any(total[1]))
    return LiveStacks(
        moments=names,
        frames=tuple(numbers),
        own=tuple(sorted({*after.own, *(known[number] for number in before.own)})),
        rows=tuple(sorted(found, key=lambda row: (-max(row.bytes), row))),
    )


def _lines(live: LiveStacks) -> Lines:
    """Return what lies below each line of code, by category."""
    held: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    blocks: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    for row in live.rows:
        for frame in set(live.stack(row)) if row.blocks[0] else ():
            if frame.filename:
                held[_place(frame)][row.category] += row.bytes[0]
                blocks[_place(frame)][row.category] += row.blocks[0]
    return {
        place: tuple(sorted(Use(category, size, blocks[place][category]) for category, size in sizes.items()))
        for place, sizes in held.items()
    }


def _place(frame: Frame) -> Place:
    return Place(frame.filename, frame.name, frame.line)


def _twin(frame: Frame, twins: dict[Place, Place]) -> Frame:
    twin = twins.get(_place(frame))
    return Frame(twin.file, twin.line, twin.function) if twin else frame
