"""The builder keeps what it is told, once."""

from __future__ import annotations

import numpy as np

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Action, Category, Frame, Moment

FORWARD = (Frame("model.py", 12, "forward"), Frame("train.py", 3, "main"))


def test_an_event_is_stored_as_given():
    builder = TraceBuilder(device=2)
    index = builder.event(
        Action.ALLOC,
        2**63 + 512,
        1000,
        7,
        123,
        FORWARD,
        Moment("backward", 1, 0),
        Category.GRADIENT,
        "layers.0",
        FORWARD[:1],
        (0, 4),
    )
    trace = builder.build()
    assert index == 0
    assert trace.device == 2
    assert (trace.action[0], trace.address[0], trace.size[0]) == (Action.ALLOC, 2**63 + 512, 1000)
    assert (trace.stream[0], trace.time_us[0]) == (7, 123)
    assert trace.stacks[trace.stack_id[0]] == FORWARD
    assert trace.stacks[trace.forward_stack_id[0]] == FORWARD[:1]
    assert trace.moments[trace.moment_id[0]] == Moment("backward", 1, 0)
    assert trace.modules[trace.module_id[0]] == "layers.0"
    assert trace.pools[trace.pool_id[0]] == (0, 4)
    assert trace.category[0] == Category.GRADIENT


def test_what_repeats_is_stored_once_and_id_zero_is_unknown():
    builder = TraceBuilder()
    stack = builder.intern_stack(FORWARD)
    for given in (FORWARD, stack, tuple(FORWARD), 0):
        builder.event(Action.ALLOC, 0, 1, stack=given)
    trace = builder.build()
    assert trace.stacks == ((), FORWARD)
    assert trace.stack_id.tolist() == [stack, stack, stack, 0]
    assert trace.moments == (Moment("", -1, -1),)
    assert trace.modules == ("",)


def test_plain_tuples_come_out_as_frames():
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, 1, stack=(("a.py", 1, "f"),))
    (frame,) = builder.build().stacks[1]
    assert frame.filename == "a.py"


def test_a_category_may_be_known_later_and_a_built_trace_does_not_change():
    builder = TraceBuilder()
    index = builder.event(Action.ALLOC, 0, 1)
    before = builder.build()
    builder.set_category(index, Category.PARAMETER)
    builder.event(Action.FREE_COMPLETED, 0, 1)
    after = builder.build()
    assert before.category.tolist() == [Category.UNKNOWN]
    assert len(before) == 1
    assert after.category.tolist() == [Category.PARAMETER, Category.UNKNOWN]
    assert len(builder) == len(after) == 2


def test_columns_have_the_types_that_the_trace_declares():
    trace = TraceBuilder().build()
    assert trace.action.dtype == np.int8
    assert trace.address.dtype == np.uint64
    assert trace.size.dtype == trace.stream.dtype == trace.time_us.dtype == np.int64
    assert trace.stack_id.dtype == trace.pool_id.dtype == np.int32
