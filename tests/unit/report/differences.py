"""A difference with plausible rows, for the tests of its reports: grown, gone, new, moved and unchanged lines."""

from __future__ import annotations

from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.trace import Action, Category, Frame, Moment, Snapshot
from oomscope.units import MiB
from tests.trace_builder import TraceBuilder

Block = tuple[int, int, str, Category]
"""MiB, line, function, category."""

BEFORE: tuple[Block, ...] = (
    (100, 10, "forward", Category.ACTIVATION),
    (100, 10, "forward", Category.ACTIVATION),
    (40, 22, "forward", Category.ACTIVATION),
    (30, 90, "mask", Category.ACTIVATION),
    (500, 5, "build", Category.PARAMETER),
)
AFTER: tuple[Block, ...] = (
    (100, 13, "forward", Category.ACTIVATION),
    (100, 13, "forward", Category.ACTIVATION),
    (100, 13, "forward", Category.ACTIVATION),
    (40, 25, "forward", Category.ACTIVATION),
    (64, 40, "loss", Category.TEMPORARY),
    (500, 5, "build", Category.PARAMETER),
)


def snapshot(blocks: tuple[Block, ...], *, device: int = 0, file: str = "/src/tinytrain/model.py") -> Snapshot:
    """Return a snapshot whose peak holds ``blocks``, over two iterations."""
    builder = TraceBuilder(device)
    for index, (size, line, function, category) in enumerate(blocks):
        moment = Moment("optimizer" if category is Category.PARAMETER else "forward", index * 2 // len(blocks), -1)
        stack = (Frame(file, line, function),)
        module = "layers.3.mlp" if function == "forward" else ""
        builder.event(
            Action.ALLOC, MiB * index, size * MiB, stack=stack, moment=moment, category=category, module=module
        )
    return Snapshot(segments=(), traces=(builder.build(),))


def both(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return one snapshot of two devices."""
    return Snapshot(segments=(), traces=(*before.traces, *after.traces))


GREW = diff(Named("a.pickle", snapshot(BEFORE)), Named("b.pickle", snapshot(AFTER)))
EQUAL = diff(Named("a.pickle", snapshot(BEFORE)), Named("b.pickle", snapshot(BEFORE)))
TWO_DEVICES = diff(
    Named("a.pickle", both(snapshot(BEFORE), snapshot(BEFORE, device=1))),
    Named("b.pickle", both(snapshot(BEFORE), snapshot(AFTER, device=1))),
)
