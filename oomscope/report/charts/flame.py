"""The live bytes as a flame graph: callers above what they call, each as wide as the bytes that it holds.

The picture is complete without a script: by call, at the first moment. ``flame.js`` draws the same trees for the other
moments, by module and by category, zooms and searches. Of two runs a frame is as wide as in the larger of both, and its
colour says which one that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup

from oomscope.printable import printable
from oomscope.report.charts.html import add_button, add_controls, add_legend, box, figure, markup, packed, share
from oomscope.report.charts.plot import Key
from oomscope.report.sentences import category_text, count, percent, shortened
from oomscope.snapshot.accounting.stack_tree import By, LiveStacks, Node
from oomscope.snapshot.sites import Site
from oomscope.snapshot.trace import Category, Frame
from oomscope.units import format_size

VIEWS: Final[dict[By, str]] = {"stack": "By call", "module": "By module", "category": "By category"}
ROW: Final = 20
"""Pixels of a frame's height."""
DRAWN: Final = 400
"""Frames drawn without a script."""
PALEST, STRONGEST = 14, 64
"""Per cent of red or blue in a frame that changed little, and in the one that changed most."""
LONGEST: Final = 80
"""Characters of a function's name in a frame."""
CATEGORIES: Final = tuple(category.label for category in Category)


@dataclass(frozen=True, kw_only=True)
class FlameGraph:
    """What is drawn."""

    moments: tuple[str, ...]
    trees: dict[By, tuple[Node, ...]]
    is_difference: bool
    """The two moments are two runs."""

    @classmethod
    def of(cls, live: LiveStacks, *, is_difference: bool = False) -> FlameGraph:
        """Return the graph of ``live``."""
        return cls(moments=live.moments, trees=live.trees, is_difference=is_difference)

    def pruned(self, most: int) -> FlameGraph:
        """Return the graph with the ``most`` largest frames of each tree; the others stay in their parents."""
        return replace(self, trees={by: tuple(_largest(tree, most)) for by, tree in self.trees.items()})

    def widths(self, tree: Sequence[Node]) -> list[int]:
        """Return how wide each node is: its bytes at the first moment; of two runs the larger amount of each part."""
        if not self.is_difference:
            return [node.bytes[0] for node in tree]
        widths = [0] * len(tree)
        below: list[tuple[int, tuple[int, ...], int]] = []
        """Depth, bytes and width of later nodes that have no parent yet."""
        for at in range(len(tree) - 1, -1, -1):
            node, children = tree[at], []
            while below and below[-1][0] == node.depth + 1:
                children.append(below.pop())
            own = (size - sum(child[1][run] for child in children) for run, size in enumerate(node.bytes))
            widths[at] = max(own) + sum(child[2] for child in children)
            below.append((node.depth, node.bytes, widths[at]))
        return widths


def _largest(tree: Sequence[Node], most: int) -> Iterator[Node]:
    """Yield the ``most`` nodes that hold most at any moment, none without its parent, which comes before it."""
    sizes = np.array([node.bytes for node in tree], dtype=np.float64)
    shares = (sizes / np.maximum(1, sizes[0])).max(axis=1)
    chosen = np.sort(np.argsort(-shares, kind="stable")[:most])
    return (tree[at] for at in chosen if shares[at] > 0)


def flame_chart(graph: FlameGraph, name: str, *, table: str) -> Markup:
    """Return the flame graph; ``name`` and ``table`` are ids, of its data and of the table of code lines."""
    chart = figure("flame", "Live bytes by stack", flame=name, table=table)
    _controls(chart, graph)
    tree = graph.pruned(DRAWN).trees["stack"]
    drawn = list(_laid_out(tree, graph.widths(tree)))
    height = (1 + max((node.depth for node, _, _ in drawn), default=0)) * ROW
    cells = box(chart, "cells", tag="div", height=f"{height}px")
    most = max((abs(_change(node)) for node in tree), default=0)
    for node, left, width in drawn:
        style = {"top": f"{node.depth * ROW}px", "left": share(left, 1), "width": share(width, 1)}
        if graph.is_difference:
            style["--mix"] = f"{_strength(node, most)}%"
        tone = _tone(node) if graph.is_difference else node.category
        cell = box(cells, f"cell {tone}", frame_label(node.frame), tag="div", **style)
        cell.set("title", printable(_tooltip(node, tree[0], graph)))
    box(chart, "readout soft", _caption(graph), tag="p").set("aria-live", "polite")
    add_legend(chart, _legend(graph))
    return markup(chart)


def flame_data(graph: FlameGraph) -> dict[str, Any]:
    """Return what the script draws, as JSON values: the trees one after another, each beginning at depth 0."""
    frames: dict[Frame, int] = {}
    rows = [
        (
            node.depth,
            frames.setdefault(node.frame, len(frames)),
            CATEGORIES.index(node.category),
            width,
            *node.bytes,
            *node.blocks,
        )
        for tree in graph.trees.values()
        for node, width in zip(tree, graph.widths(tree), strict=True)
    ]
    return {
        "moments": list(graph.moments),
        "isDifference": graph.is_difference,
        "categories": [[name, category_text(name)] for name in CATEGORIES],
        "frames": [[frame_label(frame), place_of(frame)] for frame in frames],
        "mix": [PALEST, STRONGEST],
        **packed(list(np.array(rows, dtype=np.int64).T)),
    }


def frame_label(frame: Frame) -> str:
    """Return ``forward model.py:88``, or what a frame that is no line of code is called."""
    if not frame.filename:
        return category_text(frame.name)
    return f"{shortened(frame.name, LONGEST)} {frame.filename.rpartition('/')[2]}:{frame.line}"


def place_of(frame: Frame) -> str:
    """Return a frame as a table of code lines shows it; empty where it is no line."""
    return Site(file=frame.filename, line=frame.line, function=frame.name).brief if frame.filename else ""


def _controls(chart: ET.Element, graph: FlameGraph) -> None:
    """Add what is chosen with."""
    controls = add_controls(chart)
    choices = {
        "view": [VIEWS[by] for by in graph.trees],
        "moment": [*graph.moments, *["Difference"] * graph.is_difference],
    }
    for kind, texts in choices.items():
        for at, text in enumerate(texts) if len(texts) > 1 else ():
            add_button(controls, text[:1].upper() + text[1:], "choice", **{kind: str(at)})
    add_button(controls, "Whole graph", do="reset")


def _laid_out(tree: Sequence[Node], widths: Sequence[int]) -> Iterator[tuple[Node, float, float]]:
    """Yield the nodes that have a width, with left edge and width from 0 to 1."""
    whole, ends = max(1, widths[0]), [0]
    """Starts of the next node of each depth."""
    for node, width in zip(tree, widths, strict=True):
        left = ends[node.depth]
        ends[node.depth :] = [left + width, left]
        if width:
            yield node, left / whole, width / whole


def _change(node: Node) -> int:
    return node.bytes[-1] - node.bytes[0]


def _tone(node: Node) -> str:
    change = _change(node)
    return "grew" if change > 0 else "shrank" if change < 0 else "same"


def _strength(node: Node, most: int) -> int:
    return round(PALEST + (STRONGEST - PALEST) * abs(_change(node)) / most) if _change(node) else 0


def _tooltip(node: Node, root: Node, graph: FlameGraph) -> str:
    """Return what a frame is and holds, in one line."""
    what = place_of(node.frame) or frame_label(node.frame)
    if graph.is_difference:
        before, after = map(format_size, node.bytes)
        return f"{what}: {format_size(_change(node), signed=True)}, {before} → {after}"
    held = f"{format_size(node.bytes[0])} ({percent(node.bytes[0], root.bytes[0])}) in {count(node.blocks[0], 'block')}"
    return f"{what}: {held}, mostly {category_text(node.category)}"


def _caption(graph: FlameGraph) -> str:
    """Return how it is read; a script writes here what is pointed at."""
    if graph.is_difference:
        first, second = graph.moments
        return f"As wide as the larger of both. Red: more bytes in {second}. Blue: more in {first}."
    return f"Live bytes {graph.moments[0]}: callers above, and below each what it called, as wide as its bytes."


def _legend(graph: FlameGraph) -> list[Key]:
    if graph.is_difference:
        return [Key(text="grew", style="grew"), Key(text="shrank", style="shrank")]
    present = {node.category for tree in graph.trees.values() for node in tree}
    return [Key(text=category_text(name), style=name) for name in CATEGORIES if name in present]
