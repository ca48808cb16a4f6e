"""Every table sums to the requested bytes; a line of user code stands for a stack."""

from __future__ import annotations

import pytest
from hypothesis import given

from oomscope.snapshot.accounting.attribution import NO_STACK, OLDER, by_category, by_module, by_site
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.sites import Site, is_user_code, user_frame
from oomscope.snapshot.trace import Action, Block, Category, Frame
from tests.trace_builder import TraceBuilder
from tests.unit.snapshot.strategies import recordings, segment


@given(recordings())
def test_every_table_sums_to_the_live_bytes_at_every_event(recording):
    trace, segments, _ = recording
    timeline = Timeline.of(trace, segments)
    for event in range(-1, len(trace)):
        live = timeline.requested_bytes_at(event)
        assert sum(by_category(timeline, event).values()) == live
        assert sum(by_module(timeline, event).values()) == live
        sites = by_site(timeline, event)
        assert sum(row.bytes for row in sites) == live
        assert sum(row.count for row in sites) == len(timeline.requested_at(event))


USER = Frame("/home/a/train.py", 7, "step")
TORCH = Frame("/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", 116, "forward")


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("/home/a/train.py", True),
        ("/home/a/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", True),
        ("/home/a/my_torch/torch_utils.py", True),
        ("/repo/oomscope/model/layers/mlp.py", True),
        ("/home/a/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/torch/_tensor.py", False),
        ("/home/a/pytorch/torch/optim/adamw.py", False),
        ("/usr/lib/python3.11/contextlib.py", False),
        ("/opt/conda/lib/python3.12/threading.py", False),
        ("/repo/oomscope/probe/process/worker.py", False),
        ("<frozen runpy>", False),
        ("<string>", False),
        ("??", False),
        ("/build/aten/src/ATen/native/cuda/Blas.cpp", False),
    ],
)
def test_which_frames_are_the_users_own(filename, expected):
    assert is_user_code(Frame(filename, 1, "f")) is expected


def test_the_innermost_user_frame_stands_for_a_stack():
    cxx = Frame("??", 0, "at::empty")
    outer = Frame("/home/a/main.py", 1, "main")
    assert user_frame((cxx, TORCH, USER, outer)) == USER
    assert user_frame((cxx, TORCH)) == TORCH
    assert user_frame((cxx,)) == cxx
    assert user_frame(()) is None


def test_backward_counts_for_the_forward_line_behind_it():
    builder = TraceBuilder()
    backward = (Frame("/home/a/train.py", 99, "loss.backward"),)
    builder.event(Action.ALLOC, 0, 100, stack=backward, forward_stack=(TORCH, USER), module="mlp")
    builder.event(Action.ALLOC, 512, 50, stack=backward, category=Category.GRADIENT)
    rows = by_site(Timeline.of(builder.build()), 1)
    assert [(row.site.line, row.site.module, row.category, row.bytes) for row in rows] == [
        (7, "mlp", "unknown", 100),
        (99, "", "gradient", 50),
    ]


def test_what_cannot_be_attributed_is_a_row_of_its_own():
    def block(address: int, stack: tuple[Frame, ...] = ()) -> Block:
        return Block(address=address, size=512, requested_size=400, state="active_allocated", stack=stack)

    held = segment(2048, block(0), block(512, (USER,)), block(1024))
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 1024, 400)
    rows = {row.site: row.bytes for row in by_site(Timeline.of(builder.build(), (held,)), 0)}
    assert rows == {
        OLDER: 400,
        NO_STACK: 400,
        Site(file="/home/a/train.py", line=7, function="step"): 400,
    }


def test_without_events_nothing_is_called_older():
    older = Block(address=0, size=512, requested_size=400, state="active_allocated")
    rows = by_site(Timeline.of(TraceBuilder().build(), (segment(512, older),)), -1)
    assert [(row.site, row.bytes) for row in rows] == [(NO_STACK, 400)]
