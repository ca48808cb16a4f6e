"""Live bytes by stack: every tree sums to them, layers are one, and what only passes a call on is left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from oomscope.snapshot.accounting.attribution import NO_STACK, by_site, by_stack
from oomscope.snapshot.accounting.stack_tree import stack_tree
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.trace import Action, Block, Category, Frame
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings, segment

TORCH = "/usr/lib/python3.11/site-packages/torch/"
MAIN, STEP = Frame("/a/train.py", 3, "main"), Frame("/a/train.py", 7, "step")
CALL = Frame(f"{TORCH}nn/modules/module.py", 1700, "_call_impl")
ATTENTION, MLP = Frame("/a/model.py", 20, "forward"), Frame("/a/model.py", 30, "forward")
LINEAR = Frame(f"{TORCH}nn/modules/linear.py", 134, "forward")
MEASURING = Frame("/repo/oomscope/probe/recording/hooks.py", 9, "called")
CXX = Frame("??", 0, "at::_ops::empty::call(c10::ArrayRef<long>)")


def timeline_of(*blocks):
    """Return a run that allocates ``blocks``: bytes, stack (innermost first), module, category."""
    builder = TraceBuilder()
    for number, (size, stack, module, category) in enumerate(blocks):
        builder.event(Action.ALLOC, number << 20, size, stack=stack, module=module, category=category)
    return Timeline.of(builder.build())


def at(timeline, *events):
    return {str(event): timeline.requested_at(event) for event in events}


def drawn(tree):
    return [(node.depth, node.frame.name, *node.bytes) for node in tree]


LAYERS = timeline_of(
    (100, (CXX, LINEAR, CALL, ATTENTION, CALL, STEP, MAIN), "h.0.attn", Category.ACTIVATION),
    (100, (CXX, LINEAR, CALL, ATTENTION, CALL, STEP, MAIN), "h.1.attn", Category.ACTIVATION),
    (30, (LINEAR, MEASURING, CALL, MLP, CALL, STEP, MAIN), "h.1.mlp", Category.TEMPORARY),
)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (
            "stack",
            [
                *((0, "all", 230), (1, "main", 230), (2, "step", 230)),
                *((3, "forward", 200), (4, "forward", 200), (3, "forward", 30), (4, "forward", 30)),
            ],
        ),
        (
            "module",
            [
                *((0, "all", 230), (1, "h.*", 230), (2, "attn", 200), (3, "forward", 200)),
                *((2, "mlp", 30), (3, "forward", 30)),
            ],
        ),
        (
            "category",
            [
                *((0, "all", 230), (1, "activation", 200), (2, "main", 200), (3, "step", 200), (4, "forward", 200)),
                *((5, "forward", 200), (1, "temporary", 30), (2, "main", 30), (3, "step", 30), (4, "forward", 30)),
                (5, "forward", 30),
            ],
        ),
    ],
)
def test_layers_are_one_and_passing_calls_are_left_out(by, expected):
    assert drawn(stack_tree(by_stack(LAYERS, at(LAYERS, 2)), by)) == expected


def test_several_moments_stand_side_by_side():
    live = by_stack(LAYERS, at(LAYERS, 0, 2))
    assert stack_tree(live)[0].bytes == (100, 230)
    assert stack_tree(live)[0].blocks == (1, 3)
    assert stack_tree(by_stack(LAYERS, {"never": LAYERS.requested_at(-1)})) == (
        (0, Frame("", 0, "all"), (0,), (0,), "unknown"),
    )


def test_a_stack_is_whole_but_for_frames_of_cxx():
    first, *_ = (live := by_stack(LAYERS, at(LAYERS, 2))).rows
    assert live.stack(first) == (MAIN, STEP, CALL, ATTENTION, CALL, LINEAR)
    assert [live.frames[number] for number in live.own] == [MAIN, STEP, ATTENTION, MLP]
    cxx = timeline_of((8, (CXX,), "", Category.UNKNOWN), (4, (), "", Category.UNKNOWN))
    assert [node.frame.name for node in stack_tree(by_stack(cxx, at(cxx, 1)))[1:]] == [
        *("empty (operator, C++)", NO_STACK.function)
    ]


def test_what_was_there_before_has_the_stack_that_the_segments_keep():
    def block(address, stack=()):
        return Block(address=address, size=512, requested_size=400, state="active_allocated", stack=stack)

    timeline = Timeline.of(TraceBuilder().build(), [segment(1024, block(0, (STEP, MAIN)), block(512))])
    tree = stack_tree(by_stack(timeline, at(timeline, -1)))
    assert {(node.depth, node.frame.name) for node in tree[1:]} == {(1, "main"), (2, "step"), (1, NO_STACK.function)}


@given(recordings())
def test_trees_sum_to_the_live_bytes_and_lines_are_those_of_the_table(recording):
    trace, segments, _ = recording
    timeline = Timeline.of(trace, segments)
    events = range(-1, len(trace))
    live = by_stack(timeline, at(timeline, *events))
    expected = tuple(timeline.requested_bytes_at(event) for event in events)
    for by in ("stack", "module", "category"):
        tree = stack_tree(live, by)
        assert tree[0].bytes == expected
        for moment in range(len(expected)):
            below = Counter()
            for node in tree:
                below[node.depth] += node.bytes[moment]
            assert all(below[depth] >= below[depth + 1] for depth in below)
    by_line, table = Counter(), Counter()
    for row in live.rows:
        by_line[live.site(row), row.category] += row.bytes[-1]
    for row in by_site(timeline, len(trace) - 1):
        table[replace(row.site, module=""), row.category] += row.bytes
    assert +by_line == +table
