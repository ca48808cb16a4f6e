"""Tell from the frames of two recordings which lines of a file stand where they stood.

All stacks speak, not only those of what is live at the peaks. Where every line that one recording names in a file is
named by the other too, in the same function, the file may be the same; lines that the other names besides may also be
those lines, moved there. A line is known by its number where no such move fits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from oomscope.snapshot.trace import Trace


class Numbered(NamedTuple):
    """A line of a file, by its number."""

    line: int
    function: str


Lines: TypeAlias = "set[Numbered]"
Unmoved: TypeAlias = Callable[[str, str], Lines]
"""Says of a file of the first side and one of the second which lines are the same by their numbers."""
FEWEST: Final = 3
"""Lines that both sides must name; fewer may agree by chance."""
MOST_MOVES: Final = 65_536
"""Lines times further lines of a file that are tried; beyond it no line is known by its number."""


def nothing_unmoved(before: str, after: str) -> Lines:
    """Say that no line of any file is known by its number."""
    return set()


def unmoved(before: Trace, after: Trace) -> Unmoved:
    """Return what tells of the files of two recordings; the answer is the same in either direction."""
    old, new = _lines(before), _lines(after)

    def those_of(one: str, other: str) -> Lines:
        fewer, more = sorted((old.get(one, set()), new.get(other, set())), key=len)
        further = more - fewer
        if len(fewer) < FEWEST or not fewer <= more or len(fewer) * len(further) > MOST_MOVES:
            return set()
        return fewer - set(_movable(fewer, further))

    return those_of


def _movable(lines: Lines, further: Lines) -> Iterator[Numbered]:
    """Yield lines that, with none or some of their neighbours, may have gone to where the further lines are.

    Neighbours move together. The lowest of those that moved down, as the highest of those that moved up, now stands
    between lines that stayed: it is one of the further lines.
    """
    named, ascending = lines | further, sorted(lines)
    numbers = [line.line for line in ascending]
    for target in further:
        upward = range(bisect_left(numbers, target.line) - 1, -1, -1)
        downward = range(bisect_right(numbers, target.line), len(ascending))
        for order in (upward, downward):
            yield from _moved_to(target, ascending, order, named)


def _moved_to(target: Numbered, ascending: Sequence[Numbered], order: range, named: Lines) -> Iterator[Numbered]:
    """Yield the lines that fit a move of the first one in ``order``, the nearest, to ``target``."""
    if not order or ascending[order[0]].function != target.function:
        return
    by = target.line - ascending[order[0]].line
    nearest_first = (ascending[index] for index in order)
    yield from takewhile(lambda line: line._replace(line=line.line + by) in named, nearest_first)


def _lines(trace: Trace) -> dict[str, Lines]:
    """Return the lines that stacks name, by file."""
    found: defaultdict[str, Lines] = defaultdict(set)
    for frame in {frame for stack in trace.stacks for frame in stack}:
        found[frame.filename].add(Numbered(frame.line, frame.name))
    return dict(found)
