"""Recomputation changes what is kept, and not one bit of loss or gradients."""

from __future__ import annotations

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import get_gradient_edge

from oomscope.config.schema import RecomputeConfig
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.memory.layer_groups import layer_groups
from oomscope.model.memory.recompute import DiscardedOutput, checkpoint
from oomscope.model.parallel.parallel_state import ParallelState

MODES = [
    *(
        {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": layers}
        for method in ("uniform", "block")
        for layers in (1, 2, 3, 4)
    ),
    *(
        {"recompute_granularity": "selective", "recompute_modules": modules}
        for modules in (None, [], ["core_attn"], ["mlp"], ["layernorm"], ["mlp", "layernorm", "core_attn"])
    ),
]


def loss_and_gradients(config) -> list[torch.Tensor]:
    stage = GPTStage(
        config,
        ParallelState(),
        layers=range(config.model.num_layers),
        pre_process=True,
        post_process=True,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
    )
    tokens = torch.arange(32).view(2, 16)
    torch.manual_seed(3)
    losses = [stage(tokens, tokens) for _ in range(2)]  # two microbatches in flight
    for loss in losses:
        loss.backward()
    return [*losses, torch.rand(1), *(parameter.grad for parameter in stage.parameters())]


@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_every_mode_gives_the_same_bits(config_of, norm, implementation):
    model = {"num_layers": 4, "normalization": norm, "transformer_impl": implementation, "attention_backend": "unfused"}
    plain = loss_and_gradients(config_of(model=model))
    for mode in MODES:
        recomputed = loss_and_gradients(config_of(model=model, recompute=mode))
        assert all(torch.equal(one, two) for one, two in zip(plain, recomputed, strict=True)), mode


def cut(method, num_layers, group):
    groups = layer_groups(
        RecomputeConfig(recompute_granularity="full", recompute_method=method, recompute_num_layers=group), num_layers
    )
    return [(list(group.layers), group.recompute) for group in groups if group.layers]


def test_groups_are_cut_as_megatron_cuts_them():
    assert cut("uniform", 5, 3) == [([0, 1, 2], True), ([3, 4], True)]
    assert cut("uniform", 2, 7) == [([0, 1], True)]
    assert cut("block", 4, 2) == [([0], True), ([1], True), ([2, 3], False)]
    assert cut("block", 2, 7) == [([0], True), ([1], True)]
    assert [(list(group.layers), group.recompute) for group in layer_groups(RecomputeConfig(), 3)] == [
        ([0, 1, 2], False)
    ]


@given(st.sampled_from(["uniform", "block"]), st.integers(1, 40), st.integers(1, 50))
def test_groups_cover_each_layer_once(method, num_layers, group):
    assert [layer for layers, _ in cut(method, num_layers, group) for layer in layers] == list(range(num_layers))


def test_a_discarded_output_is_empty_between_forward_and_backward():
    weight = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4, requires_grad=True)
    region = DiscardedOutput(lambda x: x.sin() * 2)
    inner = region.run(x)
    view = inner[1:]
    expected = inner.detach().clone()
    out = (inner @ weight).tanh()
    loss = out.sum() + (view * view).sum() * out.detach().sum()
    region.discard(refill_before=loss)
    assert inner.untyped_storage().nbytes() == 0
    loss.backward()
    assert torch.equal(inner, expected)
    assert torch.equal(view, expected[1:])
    gradients = x.grad, weight.grad
    x.grad = weight.grad = None
    inner = x.sin() * 2
    out = (inner @ weight).tanh()
    (out.sum() + (inner[1:] * inner[1:]).sum() * out.detach().sum()).backward()
    assert all(torch.equal(one, two) for one, two in zip(gradients, (x.grad, weight.grad), strict=True))


def test_nothing_is_held_after_backward_by_a_graph_that_lives_on():
    seen = []

    def region(x):
        seen.append(weakref.ref(x))
        return x.sin()

    discarded = DiscardedOutput(region)
    inner = discarded.run(torch.randn(3, 4, requires_grad=True))
    storage = weakref.ref(inner.untyped_storage())
    loss = inner.cos().sum()
    discarded.discard(refill_before=loss)
    graph = get_gradient_edge(loss)
    loss.backward()
    del inner, loss, discarded
    assert graph.node is not None
    assert [ref() for ref in seen[1:]] == [None]
    assert storage() is None


def test_nothing_is_discarded_where_no_gradient_will_refill_it():
    region = DiscardedOutput(torch.sin)
    with torch.no_grad():
        out = region.run(torch.ones(3))
        region.discard(refill_before=out.cos())
    assert out.untyped_storage().nbytes() == 12


def test_a_gradient_that_overtakes_the_refill_is_an_error():
    region = DiscardedOutput(torch.sin)
    inner = region.run(torch.ones(3, requires_grad=True))
    region.discard(refill_before=inner.cos())
    with pytest.raises(RuntimeError, match="before the gradient that refills it"):
        inner.backward(torch.ones(3))


def test_a_checkpoint_keeps_its_inputs_only(meter_of):
    x, y = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    random = ModelParallelRandom(torch.device("cpu"), seed=0)
    meter = meter_of(torch.nn.Module())
    out = meter(lambda: checkpoint(lambda a, b: (a @ b).sin().exp(), random, x, y))
    assert meter.bytes == 2 * x.untyped_storage().nbytes()
    out.sum().backward()
    checkpointed = x.grad, y.grad
    x.grad = y.grad = None
    (x @ y).sin().exp().sum().backward()
    assert all(torch.equal(one, two) for one, two in zip(checkpointed, (x.grad, y.grad), strict=True))
