"""Bytes that layers send: each option that decides them, by hand, and what recomputation sends and moves again."""

from __future__ import annotations

from typing import Any

import pytest

from oomscope.config.schema import Config
from oomscope.model.cost.step_time import Rates, StepCost, recomputed_traffic, step_cost
from oomscope.model.cost.traffic import layer_collectives, layer_traffic

N, H = 2 * 64, 256
HIDDEN = 2 * N * H
RATES = Rates(matmul=1e12, memory=1e12, nvlink=1e11, network=1e10, pcie=1e10, host_memory=1e11, gpus_per_node=2)
EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 128, "add_bias_linear": False}
LATENT = {
    "multi_latent_attention": True,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 24,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
}
SHARED = {**EXPERTS, "moe_shared_expert_intermediate_size": 512}


def config_of(model: dict[str, Any], recompute: list[str] | None = None, **parallel: Any) -> Config:
    shape = {"num_layers": 2, "hidden_size": H, "num_attention_heads": 8, "vocab_size": 1000, **model}
    modules = {"recompute_granularity": "selective", "recompute_modules": recompute} if recompute else {}
    data = {"seq_length": 64, "micro_batch_size": 2}
    return Config.model_validate({"model": shape, "parallel": parallel, "data": data, "recompute": modules})


def sequence_parallel(t: int) -> dict[str, Any]:
    return {"tensor_model_parallel_size": t, "sequence_parallel": True}


def test_all_to_all_sends_rows_and_all_gather_tokens() -> None:
    """Of top-2 rows three quarters leave, there and back; or every token goes to the other three ranks."""
    parallel: dict[str, Any] = {"expert_model_parallel_size": 4, "data_parallel_size": 4}
    rows = layer_collectives(config_of({**EXPERTS, "moe_token_dispatcher_type": "alltoall"}, **parallel))
    tokens = layer_collectives(config_of({**EXPERTS, "moe_token_dispatcher_type": "allgather"}, **parallel))
    assert rows.ep == 2 * 2 * HIDDEN * 3 // 4
    assert tokens.ep == 2 * HIDDEN * 3


def test_parts_of_experts_are_sent_all_rows() -> None:
    """Expert TP 2: each rank's rows, which sequence parallelism has halved, go to the other one and back."""
    parallel = {**sequence_parallel(2), "expert_tensor_parallel_size": 2}
    alltoall = layer_collectives(config_of({**EXPERTS, "moe_token_dispatcher_type": "alltoall"}, **parallel))
    allgather = layer_collectives(config_of({**EXPERTS, "moe_token_dispatcher_type": "allgather"}, **parallel))
    assert (alltoall.ep, alltoall.expert_tp) == (0, 2 * 2 * HIDDEN // 2)
    assert (allgather.ep, allgather.expert_tp) == (2 * HIDDEN // 2, 0)


def test_heads_for_sequences_send_less_than_the_ring_the_more_ranks_there_are() -> None:
    def sent(cp_comm_type: str, **model: Any) -> int:
        levels = {"hierarchical_context_parallel_sizes": (2, 2)} if cp_comm_type == "a2a+p2p" else {}
        return layer_collectives(config_of(model, context_parallel_size=4, cp_comm_type=cp_comm_type, **levels)).cp

    own = HIDDEN // 4
    assert sent("p2p") == sent("all_gather") == 3 * 2 * own
    assert sent("a2a") == 4 * own * 3 // 4
    assert sent("p2p", num_query_groups=4) == 3 * own
    assert sent("a2a+p2p") == 4 * own // 2 + 2 * own


def test_shared_experts_gather_and_scatter_as_an_mlp_does() -> None:
    parallel = {**sequence_parallel(2), "expert_tensor_parallel_size": 1, "expert_model_parallel_size": 2}
    assert layer_collectives(config_of(SHARED, **parallel)).mlp_tp == 2 * HIDDEN // 2
    assert layer_collectives(config_of(EXPERTS, **parallel)).mlp_tp == 0


def test_latents_are_gathered_instead_of_hidden_states() -> None:
    sent = layer_collectives(config_of(LATENT, **sequence_parallel(2)))
    assert sent.latents_tp == 2 * N * (96 + 64) // 2
    assert sent.attention_tp == HIDDEN // 2 + 2 * N * (96 + 64 + 16) // 2


@pytest.mark.parametrize(
    ("model", "module", "moved"),
    [
        (SHARED, "shared_experts", 2 * N * 2 * 512),
        (SHARED, "moe_act", 2 * N * 2 * (2 * 128 + 4 * H)),
        (LATENT, "mla_up_proj", 2 * 2 * N * 8 * (2 * 48 + 24)),
    ],
)
def test_recomputation_moves_the_bytes_of_its_region(model: dict[str, Any], module: str, moved: int) -> None:
    assert recomputed_traffic(config_of(model, [module]), 0) == moved
    assert recomputed_traffic(config_of(model), 0) == 0
    assert layer_traffic(config_of(model)).total > moved


def cost(model: dict[str, Any], recompute: list[str] | None = None, **parallel: Any) -> StepCost:
    return step_cost(config_of(model, recompute, **parallel), rank=0, rates=RATES)


@pytest.mark.parametrize(
    ("model", "module", "sent"),
    [(SHARED, "shared_experts", 2 * HIDDEN // 2), (LATENT, "mla_up_proj", 2 * N * (96 + 64) // 2)],
)
def test_recomputation_sends_its_region_again(model: dict[str, Any], module: str, sent: int) -> None:
    """In each of the two layers."""
    parallel = sequence_parallel(2)
    again, plain = (cost(model, modules, **parallel) for modules in ([module], None))
    assert again.network_bytes - plain.network_bytes == 2 * sent
    assert again.recompute_s > plain.recompute_s == 0
