"""Nodes of autograd's graph are numbered with the place that they are made at."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
import torch.fx.traceback

from oomscope.probe.recording.forward_stacks import ForwardStacks
from oomscope.probe.recording.position import Position
from oomscope.snapshot.event_fields import number_in


@pytest.fixture
def position() -> Position:
    return Position(None)


def numbers_of(tensor: torch.Tensor) -> list[str]:
    return tensor.grad_fn.metadata["traceback_"]


def test_a_node_knows_stack_and_module(position: Position) -> None:
    stacks = ForwardStacks(position, max_frames=40)
    x = torch.ones(2, requires_grad=True)
    before = torch.fx.traceback.format_stack
    with stacks.recorded():
        position.enter_module("mlp")
        y = x * 2
        line = sys._getframe().f_lineno - 1
        position.leave_module()
        z = x * 3
    assert torch.fx.traceback.format_stack is before
    assert not torch.is_anomaly_enabled()
    (first,), (second,) = numbers_of(y), numbers_of(z)
    stack, module = stacks.places[number_in(first)]
    assert (stack[0].filename, stack[0].line, module) == (__file__, line, "mlp")
    assert stacks.places[number_in(second)][1] == ""


def test_a_place_seen_again_keeps_its_number(position: Position) -> None:
    stacks = ForwardStacks(position, max_frames=40)
    x = torch.ones(2, requires_grad=True)
    with stacks.recorded():
        nodes = [x * 2 for _ in range(3)]
    assert len({tuple(numbers_of(node)) for node in nodes}) == 1
    assert len(stacks.places) == 1


def test_frames_are_kept_from_the_innermost_on(position: Position) -> None:
    stacks = ForwardStacks(position, max_frames=2)
    with stacks.recorded():
        torch.ones(2, requires_grad=True).mul(2)
    ((stack, _),) = stacks.places
    assert len(stack) == 2
    assert stack[0].name == "test_frames_are_kept_from_the_innermost_on"


def test_an_error_in_backward_prints_no_number(position: Position) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with ForwardStacks(position, max_frames=2).recorded():
            y = Failing.apply(torch.ones(2, requires_grad=True)).sum()
            with pytest.raises(RuntimeError, match="no"):
                y.backward()
    assert told == []
