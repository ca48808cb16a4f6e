"""A stage on one rank computes what a textbook transformer computes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from oomscope.config.schema import Config
from oomscope.errors import ConfigError
from tests.unit.model.conftest import config_of, cpu_stage
from tests.unit.model.pairs import pairs

CPU = torch.device("cpu")


def textbook(config: Config, weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return logits [b, s, V], batch first, with nothing but plain autograd operations."""
    model = config.model
    a, g, d = model.num_attention_heads, config.query_groups, config.head_dim
    _b, s = tokens.shape

    def norm(x, name):
        weight = weights[f"{name}.weight"]
        if model.normalization == "RMSNorm":
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.layernorm_epsilon) * weight
        return F.layer_norm(x, weight.shape, weight, weights[f"{name}.bias"], model.layernorm_epsilon)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def rope(x):  # as complex numbers, dimension i paired with i + d/2
        angles = torch.outer(torch.arange(s), model.rotary_base ** (-torch.arange(0, d, 2) / d))
        turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat((turned.real, turned.imag), -1)

    def attention(x, name):
        q, k, v = (part.unflatten(-1, (-1, d)) for part in linear(x, f"{name}.qkv").split([a * d, g * d, g * d], -1))
        if model.qk_layernorm:
            q, k = norm(q, f"{name}.q_norm"), norm(k, f"{name}.k_norm")
        if model.position_embedding_type == "rope":
            q, k = rope(q), rope(k)
        k, v = (x.repeat_interleave(a // g, 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / d**0.5
        scores = scores + torch.full((s, s), -torch.inf).triu(1)
        return linear(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2), f"{name}.projection")

    def mlp(x, name):
        squared = {"squared_relu": lambda x: F.relu(x) ** 2}
        act = squared.get(model.activation_func) or getattr(F, model.activation_func)
        x = linear(x, f"{name}.fc1")
        if model.gated_linear_unit:
            gate, up = x.chunk(2, -1)
            return linear(act(gate) * up, f"{name}.fc2")
        return linear(act(x), f"{name}.fc2")

    words = weights["embedding.words.weight"]
    hidden = words[tokens]
    if model.position_embedding_type == "learned_absolute":
        hidden = hidden + weights["embedding.positions"][:s]
    for index in range(model.num_layers):
        hidden = hidden + attention(norm(hidden, f"layers.{index}.norm1"), f"layers.{index}.attention")
        hidden = hidden + mlp(norm(hidden, f"layers.{index}.norm2"), f"layers.{index}.mlp")
    return norm(hidden, "final_norm") @ weights.get("output_layer.weight", words).t()


MLPS = [
    {"activation_func": "gelu"},
    {"activation_func": "relu", "add_bias_linear": False},
    {"activation_func": "squared_relu", "add_qkv_bias": True},
    {"activation_func": "silu", "gated_linear_unit": True, "qk_layernorm": True},
    {
        "activation_func": "gelu",
        "gated_linear_unit": True,
        "share_embeddings_and_output_weights": False,
        "apply_rope_fusion": False,
    },
]
VARIANTS = [
    {"normalization": norm, "num_query_groups": groups, "position_embedding_type": positions, **mlp, **backend}
    for norm, groups, positions, mlp, backend in pairs(
        ["LayerNorm", "RMSNorm"],
        [2, 8],
        ["rope", "learned_absolute"],
        MLPS,
        [{"attention_backend": "flash"}, {"attention_backend": "unfused"}],
    )
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())))
def test_loss_and_gradients_are_the_textbooks(variant):
    config = config_of(model={"hidden_dropout": 0.0, "attention_dropout": 0.0, **variant}, precision={"bf16": False})
    stage = cpu_stage(config)
    for parameter in stage.parameters():  # biases and norms away from 0 and 1; large enough to tell mistakes
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)), alpha=0.1)
    tokens, labels = torch.randint(0, 1000, (2, 2, 16), generator=torch.Generator().manual_seed(6))
    loss = stage(tokens, labels)
    loss.backward()
    copies = {weight: weight.detach().clone().requires_grad_() for weight in stage.parameters()}
    weights = {name: copies[weight] for name, weight in stage.named_parameters(remove_duplicate=False)}
    expected = F.cross_entropy(textbook(config, weights, tokens).flatten(0, 1), labels.flatten())
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-3, atol=2e-6, msg=name)


def test_stages_put_together_are_the_whole():
    config = config_of(
        model={"num_layers": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0}, precision={"bf16": False}
    )
    tokens = torch.arange(32).view(2, 16)
    first, last = (
        cpu_stage(config, layers=range(1), post_process=False),
        cpu_stage(config, layers=range(1, 4), pre_process=False),
    )
    assert torch.equal(last(first(tokens), tokens), cpu_stage(config)(tokens, tokens))
    assert [parameter.shared_embedding for parameter in (first.embedding.words.weight, last.output_layer.weight)] == [
        True
    ] * 2


def test_flash_dropout_on_the_cpu_is_refused():
    config = config_of(model={"attention_backend": "flash", "attention_dropout": 0.1}, precision={"bf16": False})
    with pytest.raises(ConfigError, match="flash attention on the CPU has no dropout"):
        cpu_stage(config)(torch.zeros(2, 16, dtype=torch.int64))
