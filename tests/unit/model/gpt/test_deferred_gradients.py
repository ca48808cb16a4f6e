"""What the output layer puts off: how much is kept, and that nothing of it is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oomscope.model.base.observer import NullObserver
from oomscope.model.gpt.output_layer import DeferredGradients, OutputLayer
from oomscope.model.parallel.tensor_parallel import Placeholders, TensorParallel

V, H = 6, 4


def output_layer(limit: int | None) -> OutputLayer:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(V, H))
    weight.main_grad = torch.zeros(V, H)  # type: ignore[attr-defined]
    tp = TensorParallel(placeholders=Placeholders(NullObserver()))
    return OutputLayer(weight, tp, None if limit is None else DeferredGradients(limit, tp, NullObserver()))


def run(layer: OutputLayer, microbatches: int) -> torch.Tensor:
    torch.manual_seed(1)
    layer.begin_step()
    for _ in range(microbatches):
        (layer(torch.randn(3, 2, H, requires_grad=True)) ** 2).sum().backward()
    layer.finish_step()
    return layer.weight.main_grad  # type: ignore[attr-defined,no-any-return]


@given(st.integers(1, 5), st.integers(0, 6))
def test_the_gradient_is_the_same_whenever_it_is_computed(microbatches: int, limit: int) -> None:
    at_once, later = run(output_layer(None), microbatches), run(output_layer(limit), microbatches)
    torch.testing.assert_close(later, at_once)


@pytest.mark.parametrize(("limit", "kept"), [(0, 5), (2, 2), (9, 5)])
def test_as_many_microbatches_are_kept_as_the_limit_says(limit: int, kept: int) -> None:
    layer = output_layer(limit)
    deferred = layer._deferred
    assert deferred is not None
    layer.begin_step()
    for _ in range(5):
        layer(torch.randn(3, 2, H, requires_grad=True)).sum().backward()
    assert (len(deferred._inputs), len(deferred._grads)) == (kept, kept)
    layer.finish_step()
    assert (len(deferred._inputs), len(deferred._grads)) == (0, 0)


def test_a_forward_without_gradients_keeps_nothing() -> None:
    layer = output_layer(0)
    with torch.no_grad():
        layer(torch.randn(3, 2, H))
    assert layer._deferred is not None
    assert not layer._deferred._inputs


def test_a_step_that_was_cut_off_leaves_nothing_behind() -> None:
    layer = output_layer(0)
    layer(torch.randn(3, 2, H, requires_grad=True))
    torch.testing.assert_close(run(layer, 2), run(output_layer(None), 2))
