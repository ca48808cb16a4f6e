"""The forward line behind an allocation in backward, as torch and as oomscope's own recording tell it."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.forward_frames import PLACES_KEY, frames_in, number_in, number_text, places_document
from oomscope.snapshot.read.build_snapshot import snapshot_of
from oomscope.snapshot.trace import Frame, Trace

STACK = (Frame("model.py", 7, "forward"), Frame("train.py", 3, "step"))


def trace_of(forward: Any, *, places: Any = None, **fields: Any) -> Trace:
    event = {"action": "alloc", "addr": 512, "size": 8, "stream": 0, "frames": [], "forward_frames": forward, **fields}
    document = {"segments": [], "device_traces": [[event]]} | ({} if places is None else {PLACES_KEY: places})
    return snapshot_of(document, where="test").traces[0]


def test_a_traceback_is_read_from_the_inside_out() -> None:
    trace = trace_of(
        ['  File "train.py", line 3, in step\n    model(x)\n', '  File "model.py", line 7, in forward\n    return x\n']
    )
    assert trace.stacks[trace.forward_stack_id[0]] == STACK
    assert trace.modules[trace.module_id[0]] == ""


def test_a_number_stands_for_stack_and_module() -> None:
    places = places_document([((), ""), (STACK, "layers.3")])
    trace = trace_of([number_text(1)], places=places)
    assert trace.stacks[trace.forward_stack_id[0]] == STACK
    assert trace.modules[trace.module_id[0]] == "layers.3"


def test_what_an_event_says_itself_comes_first() -> None:
    places = places_document([(STACK, "layers.3")])
    trace = trace_of([number_text(0)], places=places, user_metadata='{"mod": "mlp", "fwd": [["a.py", 1, "f"]]}')
    assert trace.modules[trace.module_id[0]] == "mlp"
    assert trace.stacks[trace.forward_stack_id[0]] == (Frame("a.py", 1, "f"),)


@pytest.mark.parametrize("forward", [None, [], {}, "x", [1], [["a"]], [number_text(9)], ["no frame"], ["x"] * 2000])
@pytest.mark.parametrize("places", [None, {}, [[]], [["m", "x"]], [["m", [["a.py", -1, "f"], ["a.py", "1", 2], 3]]]])
def test_what_is_not_well_formed_says_nothing(forward: Any, places: Any) -> None:
    assert trace_of(forward, places=places).forward_stack_id[0] == 0


@given(st.integers(0, 10**8))
def test_a_number_is_read_back(number: int) -> None:
    assert number_in(number_text(number)) == number


def test_pythons_own_tracebacks_are_read() -> None:
    stack = traceback.extract_stack()
    frames = frames_in(traceback.format_list(stack))
    assert frames == [(each.filename, each.lineno, each.name) for each in reversed(stack)]
