"""The live bytes at some moments by whole stack, and the trees into which stacks merge: by call, module or category.

:func:`~oomscope.snapshot.attribution.by_stack` finds them in a trace. Every tree sums to the live bytes of its moment.
The equal modules of a list (``h.0``, ``h.1``, …) are one: a tree shows the layer, not each of its eighty copies. Frames
of C++ are left out where a stack has any of Python.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from oomscope.snapshot.sites import Frame, Site

By: TypeAlias = Literal["stack", "module", "category"]
Amounts: TypeAlias = tuple[int, ...]
"""A number for each moment."""
MODULE_CALL: Final = "torch/nn/modules/module.py"
"""Every call of a module passes through it, twice."""


class StackBytes(NamedTuple):
    """What the blocks of one stack, module and category hold."""

    frames: tuple[int, ...]
    """Indices into :attr:`LiveStacks.frames`, outermost first; at least one."""
    line: int
    """Which of ``frames`` stands for the stack in a table of code lines."""
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
    """The distinct frames. What is no line of code has no file."""
    own: tuple[int, ...]
    """Indices of those that are code of the program or of its libraries, not of PyTorch or Python."""
    rows: tuple[StackBytes, ...]

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
    """0 for the root."""
    frame: Frame
    """Without a file where it is no line of code."""
    bytes: Amounts
    blocks: Amounts
    category: str
    """Of most of its bytes."""


def place(name: str) -> Frame:
    """Return a frame that is no line of code."""
    return Frame("", 0, name)


def stack_tree(live: LiveStacks, by: By = "stack") -> tuple[Node, ...]:
    """Return the tree of ``live``, parents before their children, of which the largest is first.

    Args:
        live: what is merged.
        by: ``stack``: what called what. ``module``: the parts of the modules' names, then the line.
            ``category``: the category, then what called what.
    """
    root, own = _Branch(place("all")), frozenset(live.own)
    for row in live.rows:
        branch = root
        branch.rows.append(row)
        for frame in _path(live, row, by, own):
            branch = branch.below.setdefault(frame, _Branch(frame))
            branch.rows.append(row)
    found, waiting = [], [(0, root)]
    while waiting:
        depth, branch = waiting.pop()
        found.append(branch.node(depth, len(live.moments)))
        below = sorted(branch.below.values(), key=lambda each: sum(sum(row.bytes) for row in each.rows))
        waiting += [(depth + 1, each) for each in below]
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


@dataclass(frozen=True)
class _Branch:
    """A node while its tree grows."""

    frame: Frame
    rows: list[StackBytes] = field(default_factory=list)
    below: dict[Frame, _Branch] = field(default_factory=dict)

    def node(self, depth: int, moments: int) -> Node:
        """Return it with what its rows sum to."""
        categories = Counter({"unknown": 0})
        for row in self.rows:
            categories[row.category] += sum(row.bytes)
        sizes = tuple(sum(row.bytes[moment] for row in self.rows) for moment in range(moments))
        blocks = tuple(sum(row.blocks[moment] for row in self.rows) for moment in range(moments))
        return Node(depth, self.frame, sizes, blocks, categories.most_common(1)[0][0])
