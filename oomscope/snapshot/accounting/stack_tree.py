"""The live bytes at some moments by whole stack, and the trees into which stacks merge: by call, module or category.

:func:`~oomscope.snapshot.accounting.attribution.by_stack` finds them in a trace. Every tree sums to the live bytes of
its moment. The equal modules of a list (``h.0``, ``h.1``, …) are one: a tree shows the layer, not each of its eighty
copies. Frames of C++ are left out where a stack has any of Python.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from oomscope.snapshot.sites import Frame, Site

By: TypeAlias = Literal["stack", "module", "category"]
Amounts: TypeAlias = tuple[int, ...]
"""A number for each moment."""
MODULE_CALL: Final = "torch/nn/modules/module.py"
"""Function that every call of a module passes through, twice."""


class StackBytes(NamedTuple):
    """What the blocks of one stack, module and category hold."""

    frames: tuple[int, ...]
    """Indices into :attr:`LiveStacks.frames`, outermost first; at least one."""
    line: int
    """Index of the frame that stands for the stack in a table of code lines."""
    module: str
    category: str
    bytes: Amounts
    """Requested."""
    blocks: Amounts


@dataclass(frozen=True, kw_only=True)
class LiveStacks:
    """The live bytes at one moment or several, by stack; the largest rows first."""

    moments: tuple[str, ...]
    frames: tuple[Frame, ...]
    """The distinct frames; one that is no line of code has no file."""
    own: tuple[int, ...]
    """Indices of those that are code of the program or of its libraries, not of PyTorch or Python."""
    rows: tuple[StackBytes, ...]

    @cached_property
    def trees(self) -> dict[By, tuple[Node, ...]]:
        """The trees by what is merged; there is none by modules where none is known."""
        ways: tuple[By, ...] = ("stack", "module", "category")
        has_modules = any(row.module for row in self.rows)
        return {by: stack_tree(self, by) for by in ways if by != "module" or has_modules}

    def stack(self, row: StackBytes) -> tuple[Frame, ...]:
        """Return the frames of ``row``, outermost first."""
        return tuple(self.frames[index] for index in row.frames)

    def at(self, moment: str) -> LiveStacks:
        """Return what is live at one of the moments."""
        index = self.moments.index(moment)
        rows = (
            row._replace(bytes=row.bytes[index : index + 1], blocks=row.blocks[index : index + 1]) for row in self.rows
        )
        return replace(self, moments=(moment,), rows=tuple(row for row in rows if row.blocks[0]))

    def site(self, row: StackBytes) -> Site:
        """Return the line that stands for ``row``, without a module."""
        frame = self.frames[row.frames[row.line]]
        return Site(file=frame.filename, line=frame.line, function=frame.name)


class Node(NamedTuple):
    """A frame of a tree, or a part of a module's name, or a category, with all that lies below it."""

    depth: int
    """Depth of the node; 0 for the root."""
    frame: Frame
    """Frame of the node, without a file if it is no line of code."""
    bytes: Amounts
    blocks: Amounts
    category: str
    """Category that holds most of its bytes."""


def place(name: str) -> Frame:
    """Return a frame that is no line of code."""
    return Frame("", 0, name)


def stack_tree(live: LiveStacks, by: By = "stack") -> tuple[Node, ...]:
    """Return the tree of ``live``, parents before their children, the largest child first.

    By ``stack``: what called what; by ``module``: the parts of the modules' names, then the line; by ``category``: the
    category, then what called what.
    """
    root, own = _Branch(place("all"), len(live.moments)), frozenset(live.own)
    for row in live.rows:
        branch = root
        branch.add(row)
        for frame in _path(live, row, by, own):
            if frame not in branch.below:
                branch.below[frame] = _Branch(frame, len(live.moments))
            branch = branch.below[frame]
            branch.add(row)
    found, waiting = [], [(0, root)]
    while waiting:
        depth, branch = waiting.pop()
        category = max(branch.categories, key=branch.categories.__getitem__, default="unknown")
        found.append(Node(depth, branch.frame, tuple(branch.bytes), tuple(branch.blocks), category))
        waiting += [(depth + 1, each) for each in sorted(branch.below.values(), key=lambda each: sum(each.bytes))]
    return tuple(found)


def _path(live: LiveStacks, row: StackBytes, by: By, own: frozenset[int]) -> Iterator[Frame]:
    """Yield what lies between the root and the end of ``row``.

    What PyTorch and Python only pass on is left out: their frames are shown where nothing of the user's lies below.
    """
    if by == "module":
        yield from map(place, re.split(r"\.(?!\*)", row.module or "(no module)"))
        yield live.frames[row.frames[row.line]]
        return
    if by == "category":
        yield place(row.category)
    innermost = max((at for at, number in enumerate(row.frames) if number in own), default=-1)
    for at, (number, frame) in enumerate(zip(row.frames, live.stack(row), strict=True)):
        if number in own or (at > innermost and not frame.filename.endswith(MODULE_CALL)):
            yield frame


class _Branch:
    """A node while its tree grows."""

    def __init__(self, frame: Frame, moments: int) -> None:
        self.frame = frame
        self.bytes = [0] * moments
        self.blocks = [0] * moments
        self.categories: Counter[str] = Counter()
        self.below: dict[Frame, _Branch] = {}

    def add(self, row: StackBytes) -> None:
        """Add what ``row`` holds."""
        for moment, size in enumerate(row.bytes):
            self.bytes[moment] += size
            self.blocks[moment] += row.blocks[moment]
        self.categories[row.category] += sum(row.bytes)
