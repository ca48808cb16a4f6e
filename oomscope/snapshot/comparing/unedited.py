"""Tell from the frames of two recordings whether a file has the same text on both sides.

All stacks speak, not only those of what is live at the peaks: where every line that one recording names in a file is
named by the other too, in the same function, nothing in it has moved, and a line is known by its number. An edit
moves the lines below it, of which some stand in no stack of the other side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final, TypeAlias

from oomscope.snapshot.trace import Trace

Unedited: TypeAlias = Callable[[str, str], bool]
"""Says of a file of the first side and one of the second whether their text is the same."""
FEWEST: Final = 3
"""Lines that both sides must name; fewer may agree by chance."""


def never(before: str, after: str) -> bool:
    """Say that nothing tells of any file."""
    return False


def unedited(before: Trace, after: Trace) -> Unedited:
    """Return what tells of the files of two recordings; the answer is the same in either direction."""
    old, new = _lines(before), _lines(after)

    def are_same(one: str, other: str) -> bool:
        here, there = old.get(one, set()), new.get(other, set())
        return len(here & there) >= FEWEST and (here <= there or there <= here)

    return are_same


def _lines(trace: Trace) -> dict[str, set[tuple[str, int]]]:
    """Return functions and lines that stacks name, by file."""
    found: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for frame in {frame for stack in trace.stacks for frame in stack}:
        found[frame.filename].add((frame.name, frame.line))
    return dict(found)
