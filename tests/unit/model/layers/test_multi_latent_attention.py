"""Multi-latent attention computes what its definition says, and keeps its ledger."""

from __future__ import annotations

import math

import pytest
import torch

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import stage_parameters
from oomscope.model.layers.multi_latent_attention import LatentAttention
from tests.ledgers.layer import kept_layer_ledger
from tests.unit.model.conftest import config_of, cpu_stage, loss_and_gradients, saved_by_layer
from tests.unit.model.pairs import pairs

LATENT = {
    "multi_latent_attention": True,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
    "position_embedding_type": "none",
    "add_bias_linear": False,
    "normalization": "RMSNorm",
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
UP = {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj", "core_attn", "layernorm"]}


def latent_config(recompute: dict | None = None, **model: object) -> Config:
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
    return Config.model_validate(
        {
            "model": {**sizes, **LATENT, "make_vocab_size_divisible_by": 1, "qk_layernorm": True, **model},
            "data": {"seq_length": 16, "micro_batch_size": 2},
            "precision": {"bf16": False},
            "recompute": recompute or {},
        }
    )


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotate the last dimension of ``x`` [s, b, a, 4] by position, in the rotate-half form."""
    s, half = x.shape[0], x.shape[-1] // 2
    angles = torch.outer(torch.arange(s).float(), 10000 ** (-torch.arange(half).float() / half))[:, None, None]
    real, imaginary = x.split(half, -1)
    return torch.cat(
        [real * angles.cos() - imaginary * angles.sin(), imaginary * angles.cos() + real * angles.sin()], -1
    )


def by_definition(layer: LatentAttention, x: torch.Tensor) -> torch.Tensor:
    """DeepSeek-V2, equations 9 to 19, head by head."""

    def normed(latent: torch.Tensor) -> torch.Tensor:
        return latent * (latent.square().mean(-1, keepdim=True) + 1e-5).rsqrt()

    s, b, _ = x.shape
    query = normed(x @ layer.q_down.t()) @ layer.q_up.t()
    q = query.view(s, b, 4, 12)
    latent, position = (x @ layer.kv_down.t()).split([16, 4], -1)
    k_plain, v = (normed(latent) @ layer.kv_up.t()).view(s, b, 4, 16).split([8, 8], -1)
    k = torch.cat([k_plain, turned(position.unsqueeze(2)).expand(s, b, 4, 4)], -1)
    q = torch.cat([q[..., :8], turned(q[..., 8:])], -1)
    scores = torch.einsum("sbad,tbad->bast", q, k) / math.sqrt(12)
    hidden = torch.ones(s, s, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("bast,tbad->sbad", weights, v).flatten(2) @ layer.projection.weight.t()


@pytest.mark.parametrize("backend", ["flash", "unfused"])
def test_latent_attention_is_its_definition(backend):
    layer = cpu_stage(latent_config(attention_backend=backend)).layers[0].attention
    results = []
    for run in (layer, lambda x: by_definition(layer, x)):
        x = torch.randn(16, 2, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        layer.zero_grad()
        out = run(x)
        (out * torch.linspace(-1, 1, 32)).sum().backward()
        results.append([out, x.grad, layer.q_down.grad.clone(), layer.q_up.grad.clone(), layer.kv_down.grad.clone()])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("split", [(1, False), (2, True), (2, False)])
@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
def test_latent_attention_keeps_its_ledger(meta_stage, split, implementation):
    t, sequence_parallel = split
    recomputed = [[], ["mla_up_proj"], UP]
    choices = ([None, 24], [False, True], ["flash", "unfused"], recomputed, [True, False])
    for q_lora_rank, normed, backend, modules, fused in pairs(*choices):
        config = config_of(
            model={
                **LATENT,
                "q_lora_rank": q_lora_rank,
                "qk_layernorm": normed,
                "apply_rope_fusion": fused,
                "attention_backend": backend,
                "transformer_impl": implementation,
            },
            parallel={"tensor_model_parallel_size": t, "sequence_parallel": sequence_parallel},
            recompute=modules
            if isinstance(modules, dict)
            else {"recompute_granularity": "selective", "recompute_modules": modules},
        )
        stage = meta_stage(config)
        counted = stage_parameters(config, 2, pre_process=True, post_process=True)
        assert sum(parameter.numel() for parameter in stage.parameters()) == counted
        kept = sum(kept_layer_ledger(config).values())
        assert saved_by_layer(stage, config) == kept, (q_lora_rank, normed, backend, modules)


@pytest.mark.parametrize("backend", ["flash", "unfused"])
@pytest.mark.parametrize("implementation", ["local", "transformer_engine"])
def test_recomputation_changes_no_bit(backend, implementation):
    model = {"attention_backend": backend, "transformer_impl": implementation}
    expected = loss_and_gradients(latent_config(**model))
    for name, tensor in loss_and_gradients(latent_config(UP, **model)).items():
        assert torch.equal(tensor, expected[name]), name
