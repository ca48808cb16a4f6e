"""Recomputation changes what is kept, and not one bit of loss or gradients."""

from __future__ import annotations

import pytest
import torch

from oomscope.model.memory.recompute import DiscardedOutput
from tests.unit.model.conftest import config_of, cpu_stage

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
    stage = cpu_stage(config, dtype=torch.bfloat16)
    tokens = torch.arange(32).view(2, 16)
    torch.manual_seed(3)
    losses = [stage(tokens, tokens) for _ in range(2)]  # two microbatches in flight
    for loss in losses:
        loss.backward()
    return [*losses, torch.rand(1), *(parameter.grad for parameter in stage.parameters())]


@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
def test_every_mode_gives_the_same_bits(norm, implementation):
    model = {"num_layers": 4, "normalization": norm, "transformer_impl": implementation, "attention_backend": "unfused"}
    plain = loss_and_gradients(config_of(model=model))
    for mode in MODES:
        recomputed = loss_and_gradients(config_of(model=model, recompute=mode))
        assert all(torch.equal(one, two) for one, two in zip(plain, recomputed, strict=True)), mode


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
