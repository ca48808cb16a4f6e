"""The router chooses, weighs, drops and balances by the definitions, and keeps its ledger."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from oomscope.config.schema import Config, ModelConfig
from oomscope.model.moe.router import Balance, Router, update_expert_bias
from oomscope.model.moe.routing import capacity, choose, drop, even_shares
from oomscope.model.parallel.parallel_state import ParallelState
from tests.ledgers.layer import kept_layer_ledger
from tests.unit.model.conftest import Meter, config_of

SHAPE = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "num_moe_experts": 12}
SIGMOID = {"moe_router_score_function": "sigmoid"}
GROUPS = {"moe_router_num_groups": 4, "moe_router_group_topk": 2}
BIAS = {**SIGMOID, "moe_router_enable_expert_bias": True}
CHOICES = [
    {},
    {"moe_router_pre_softmax": True},
    {"moe_router_pre_softmax": True, "moe_router_topk": 1},
    {"moe_router_topk_scaling_factor": 2.5},
    GROUPS,
    {**GROUPS, "moe_router_pre_softmax": True},
    SIGMOID,
    {**SIGMOID, "moe_router_topk": 1},
    {**SIGMOID, **GROUPS, "moe_router_topk_scaling_factor": 2.5},
    BIAS,
    {**BIAS, **GROUPS},
]
LOSSES = ["aux_loss", "seq_aux_loss", "global_aux_loss"]


def model_of(**keys: Any) -> ModelConfig:
    return ModelConfig(**{**SHAPE, "moe_router_topk": 4, **keys})


def router_of(model: ModelConfig, balance: Balance | None = None) -> Router:
    weight = torch.randn(12, 16, generator=torch.Generator().manual_seed(3))
    return Router(nn.Parameter(weight), model, balance or Balance())


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def token_by_definition(
    logits: torch.Tensor, model: ModelConfig, bias: torch.Tensor | None
) -> tuple[list[int], torch.Tensor]:
    """Return the experts of one token and the weights of all, [E]: sorted lists, no tensor operation on many tokens."""
    k, experts = model.moe_router_topk, len(logits)
    if model.moe_router_score_function == "sigmoid":
        scores = 1 / (1 + (-logits).exp())
    elif model.moe_router_pre_softmax:
        scores = logits.exp() / logits.exp().sum()
    else:
        scores = logits
    rank_by = (scores if bias is None else scores + bias).tolist()
    allowed = list(range(experts))
    if model.moe_router_group_topk is not None:
        groups, best = model.moe_router_num_groups, model.moe_router_group_topk
        members = [allowed[g * experts // groups : (g + 1) * experts // groups] for g in range(groups)]
        worth = [sum(sorted((rank_by[e] for e in group), reverse=True)[: k // best]) for group in members]
        allowed = [expert for g in sorted(range(groups), key=worth.__getitem__)[-best:] for expert in members[g]]
    chosen = sorted(allowed, key=rank_by.__getitem__)[-k:]
    weights = torch.zeros(experts)
    if model.moe_router_score_function == "sigmoid":
        weights[chosen] = scores[chosen] / scores[chosen].sum() if k > 1 else scores[chosen]
    elif model.moe_router_pre_softmax:
        weights[chosen] = scores[chosen]
    else:
        weights[chosen] = scores[chosen].exp() / scores[chosen].exp().sum()
    return chosen, weights * (model.moe_router_topk_scaling_factor or 1)


@pytest.mark.parametrize("keys", CHOICES, ids=str)
def test_the_choice_is_its_definition(keys):
    model = model_of(**keys)
    bias = noise(12) / 4 if model.moe_router_enable_expert_bias else None
    found, expected = (noise(40, 12).requires_grad_() for _ in range(2))
    routing = choose(found, model, bias, training=True)
    by_token = [token_by_definition(row, model, bias) for row in expected]
    weights = torch.stack([weights for _, weights in by_token])
    for row, (chosen, _) in zip(routing.visits, by_token, strict=True):
        assert row.nonzero().flatten().tolist() == sorted(chosen)
    torch.testing.assert_close(routing.probabilities, weights)
    for result in (routing.probabilities, weights):
        (result * noise(40, 12)).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)


@given(st.integers(2, 30), st.integers(2, 8), st.integers(0, 1000))
def test_sinkhorn_scales_rows_and_columns_to_even_shares(tokens, experts, seed):
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))
    shares = even_shares(logits)
    torch.testing.assert_close(shares.sum(0), torch.full((experts,), 1 / experts), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(shares.sum(1), torch.full((tokens,), 1 / tokens), rtol=0.05, atol=1e-3)
    scaled = shares.log() - logits  # a number a row and a number a column
    torch.testing.assert_close(
        scaled - scaled[:1] - scaled[:, :1] + scaled[0, 0], torch.zeros_like(scaled), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("k", [1, 3])
def test_sinkhorn_chooses_evenly_and_weighs_plainly(k):
    model = model_of(moe_router_load_balancing_type="sinkhorn", moe_router_topk=k)
    skewed = (noise(240, 12) + torch.linspace(0, 3, 12)).requires_grad_()
    routing = choose(skewed, model, None, training=True)
    plain = choose(skewed, model, None, training=False)
    assert routing.visits.sum(0).max() < plain.visits.sum(0).max()
    assert (routing.visits.sum(1) == k).all()
    weights = skewed.sigmoid() if k == 1 else skewed.softmax(1)
    torch.testing.assert_close(routing.probabilities, weights * routing.visits)
    assert torch.equal(plain.visits, torch.zeros(240, 12).scatter(1, skewed.topk(k).indices, 1).bool())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("policy", ["probs", "position"])
def test_an_expert_takes_its_capacity_of_its_own_tokens(policy, padded):
    model = model_of(
        moe_expert_capacity_factor=0.5, moe_token_drop_policy=policy, moe_pad_expert_input_to_capacity=padded
    )
    limit = capacity(40, model)
    before = choose(noise(40, 12), model, None, training=True)
    after = drop(before, model, limit)
    wanted = before.visits.sum(0)
    assert after.visits.sum(0).tolist() == ([limit] * 12 if padded else wanted.clamp(max=limit).tolist())
    assert torch.equal((after.visits & before.visits).sum(0), wanted.clamp(max=limit))
    torch.testing.assert_close(after.probabilities, before.probabilities * after.visits)
    if policy == "probs":
        least = after.probabilities.masked_fill(~(after.visits & before.visits), 2).amin(0)
        most = before.probabilities.masked_fill(after.visits, 0).amax(0)
        assert (least >= most).all()


def switch_loss(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Fedus et al. 2021, equation 4, over tokens [n, E]: E · Σ (share of the k·n visits · mean score)."""
    visits = torch.zeros_like(scores).scatter(1, scores.topk(k).indices, 1)
    return scores.shape[1] * (visits.mean(0) / k * scores.mean(0)).sum()


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
@pytest.mark.parametrize("kind", LOSSES)
def test_each_loss_is_its_definition(kind, function):
    """One microbatch: the global batch is the microbatch; by sequences it is the mean of their losses."""
    model = model_of(moe_router_score_function=function, moe_router_load_balancing_type=kind)
    router = router_of(model, Balance(aux_loss_coeff=0.1, z_loss_coeff=0.01, scale=0.5))
    hidden = noise(20, 3, 16)
    router(hidden).probabilities.sum().backward()
    plain = router_of(model)
    plain(hidden).probabilities.sum().backward()
    logits = hidden @ router.weight.t()
    scores = logits.softmax(-1) if function == "softmax" else logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
    if kind == "seq_aux_loss":
        loss = sum(switch_loss(scores[:, sequence], 4) for sequence in range(3)) / 3
    else:
        loss = switch_loss(scores.flatten(0, 1), 4)
    z_loss = logits.logsumexp(-1).square().mean()  # Zoph et al. 2022, equation 5
    (expected,) = torch.autograd.grad(0.5 * (0.1 * loss + 0.01 * z_loss), router.weight)
    torch.testing.assert_close(router.weight.grad, plain.weight.grad + expected, rtol=1e-4, atol=1e-7)


def test_the_global_loss_averages_the_visits_of_a_step():
    """Qiu et al. 2025: the shares are those of all microbatches so far, the scores those of the last."""
    model = model_of(moe_router_load_balancing_type="global_aux_loss")
    router = router_of(model, Balance(aux_loss_coeff=0.1))
    batches = [noise(20, 2, 16), noise(20, 2, 16) + 1]
    router(batches[0])
    router(batches[1]).probabilities.sum().backward()
    plain = router_of(model)
    plain(batches[1]).probabilities.sum().backward()
    scores = [(batch.flatten(0, 1) @ router.weight.t()).softmax(1) for batch in batches]
    visits = torch.stack([torch.zeros(40, 12).scatter(1, score.topk(4).indices, 1).mean(0) for score in scores]).mean(0)
    (expected,) = torch.autograd.grad(0.1 * 12 * (visits / 4 * scores[1].mean(0)).sum(), router.weight)
    torch.testing.assert_close(router.weight.grad, plain.weight.grad + expected, rtol=1e-4, atol=1e-7)
    update_expert_bias([router], ParallelState(), rate=0.0)
    assert router.microbatches == 0
    assert not router.visits_of_batch.any()


def test_a_step_moves_the_bias_towards_even_loads():
    """arXiv:2408.15664, algorithm 1: by the rate, up where an expert has less than the mean, down where more."""
    router = router_of(model_of(**BIAS))
    for seed in (1, 2):
        router(noise(20, seed, 16))
    visits = router.visits_of_step.clone()
    before = router.expert_bias.clone().uniform_(generator=torch.Generator().manual_seed(1))
    router.expert_bias.copy_(before)
    update_expert_bias([nn.Sequential(router)], ParallelState(), rate=0.25)
    expected = [b + 0.25 * ((v < 20) - (v > 20)) for b, v in zip(before.tolist(), visits.tolist(), strict=True)]
    assert visits.sum() == 4 * 60
    torch.testing.assert_close(router.expert_bias, torch.tensor(expected))
    assert not router.visits_of_step.any()


def layer_config(keys: dict[str, Any], dtype: str | None) -> Config:
    model = {
        **SHAPE,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "moe_ffn_hidden_size": 24,
        "moe_router_topk": 4,
        "moe_token_dispatcher_type": "alltoall",
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "moe_router_dtype": dtype,
        **keys,
    }
    return config_of(model=model)


SINKHORN = [{"moe_router_load_balancing_type": "sinkhorn", "moe_router_topk": k} for k in (1, 4)]
BALANCED = [
    {"moe_router_load_balancing_type": kind, "moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.01, **scores}
    for kind, scores in itertools.product(LOSSES, ({}, SIGMOID, BIAS))
]
DROPPED = [
    {"moe_expert_capacity_factor": 0.5, "moe_token_drop_policy": policy, "moe_pad_expert_input_to_capacity": padded}
    for policy, padded in itertools.product(("probs", "position"), (False, True))
]


@pytest.mark.parametrize("keys", [*CHOICES, *SINKHORN, *BALANCED, *DROPPED], ids=str)
def test_the_router_keeps_its_ledger(meta_stage, keys):
    for dtype in (None, "fp32"):
        config = layer_config(keys, dtype)
        layer = meta_stage(config).layers[0]
        meter = Meter(layer)
        hidden = torch.empty(16, 2, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
        meter(lambda layer=layer, hidden=hidden: layer(hidden))
        assert meter.bytes == sum(kept_layer_ledger(config).values()), dtype
