"""Positions of events that a torch before 2.10 recorded without any text; numbers of autograd's nodes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.recording.collector import KeptObjects
from oomscope.probe.recording.position import ForwardStacks, Position, PositionLog
from oomscope.snapshot.forward_frames import number_in

COUNTED = ("alloc", "free_requested")
ACTIONS = st.sampled_from([*COUNTED, "segment_alloc", "free_completed", "oom"])


@given(st.lists(st.one_of(ACTIONS, st.integers(0, 3)), max_size=30), st.integers(0, 30))
def test_what_the_allocator_counts_has_the_text_that_was_announced_before_it(history: list[Any], dropped: int) -> None:
    """``history`` holds events, and numbers: announcements. The ring has lost the oldest events."""
    done, events, texts, text = 0, [], [], ""
    log = PositionLog(lambda: (done,), max_entries=30)
    for item in history:
        if isinstance(item, int):
            text = str(item)
            log.note(text)
        else:
            done += item in COUNTED
            events.append({"action": item})
            texts.append(text)
    kept = events[dropped:]
    log.mark([kept], [done])
    counted = [
        (event["user_metadata"], text)
        for event, text in zip(kept, texts[dropped:], strict=True)
        if event["action"] in COUNTED
    ]
    assert all(marked == said for marked, said in counted), counted


def test_what_completes_a_free_belongs_to_it_and_a_segment_to_the_block_that_it_is_for() -> None:
    done = 0
    log = PositionLog(lambda: (done,), max_entries=5)
    log.note("forward")
    done = 2  # alloc, free_requested
    log.note("backward")
    done = 3
    trace = [{"action": each} for each in ("alloc", "free_requested", "free_completed", "segment_alloc", "alloc")]
    log.mark([trace], [done])
    assert [event["user_metadata"] for event in trace] == ["forward"] * 3 + ["backward"] * 2


def test_each_card_has_its_own_counts() -> None:
    counts = [(0, 0), (1, 0), (1, 1)]
    log = PositionLog(lambda: counts.pop(0), max_entries=5)
    log.note("init")
    log.note("forward")  # one block of the first card later
    traces = [[{"action": "alloc"}], [{"action": "alloc"}]]
    log.mark(traces, counts.pop())
    assert [[event["user_metadata"] for event in trace] for trace in traces] == [["init"], ["forward"]]


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph: a cycle of tensor and gradient
def test_a_gradient_to_be_differentiated_holds_nothing_for_its_line() -> None:
    stacks = ForwardStacks(Position(None), KeptObjects(), max_frames=50)
    leaf, scale = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with stacks.recorded():
        data = leaf * 2
        (gradient,) = torch.autograd.grad((scale * data).sum(), leaf, create_graph=True)  # needs scale alone
        saved = weakref.ref(data)
        del data
        assert saved() is None
        gradient.sum().backward(create_graph=True)
        assert torch.is_anomaly_enabled()
    number = number_in(gradient.grad_fn.metadata["traceback_"][0])
    assert "test_a_gradient_to_be_differentiated_holds_nothing_for_its_line" in {
        frame.name for frame in stacks.places[number][0]
    }


def test_what_is_compiled_in_backward_holds_nothing_of_it() -> None:
    """As under activation checkpointing: the compiler keeps nodes that it makes while it traces."""
    again = torch.compile(lambda x: (x * 2).sum(), backend="aot_eager")

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                again(torch.ones(3, requires_grad=True))
            assert torch.is_anomaly_enabled()
            return gradient.expand(2)

    with ForwardStacks(Position(None), KeptObjects(), max_frames=50).recorded():
        leaf = torch.ones(2, requires_grad=True)
        Recomputed.apply(leaf).backward()
        saved = weakref.ref(leaf)
        del leaf
        gc.collect()
        assert saved() is None
