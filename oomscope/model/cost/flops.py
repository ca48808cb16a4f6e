"""Floating-point operations of matrix products, the rest being negligible.

Narayanan et al. 2021 (appendix) and Korthikanti et al. 2022 (appendix A), for any number of key/value heads, gated
MLPs, experts and latent attention. A multiply-add is two operations, backward costs twice the forward, and causal
attention counts in full, as in Megatron-LM ``training.py::num_floating_point_operations``: the masked half is not
subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.memory.layer_groups import layer_groups, recomputes_predictions
from oomscope.model.parallel.parallel_state import rank_coordinates


class LayerFlops(NamedTuple):
    """Forward operations of one layer for one microbatch, on one rank."""

    projections: int
    """QKV and the output projection."""
    core_attention: int
    """Scores and their weighted sum."""
    mlp: int
    """Dense MLP, or router and experts, the shared ones included."""
    up_projections: int
    """Of ``projections``: with latent attention (MLA) those from the latents to queries, keys and values."""
    shared_experts: int
    """Of ``mlp``: the shared experts."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.projections + self.core_attention + self.mlp


def tokens_of(config: Config) -> int:
    """Return n, the tokens of a microbatch that one rank attends from: s·b over the context-parallel ranks."""
    return config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size


def layer_flops(config: Config, layer: int = 0) -> LayerFlops:
    """Return the forward operations of ``layer``, counted over the whole model from 0."""
    model, t, n = config.model, config.parallel.tensor_model_parallel_size, tokens_of(config)
    up = 2 * n * _up_columns(config) // t
    heads = model.num_attention_heads * (config.query_width + config.value_width)
    shared = 2 * n * model.hidden_size * _shared_width(config, layer) // t
    return LayerFlops(
        projections=2 * n * _down_columns(config) // t + up,
        core_attention=2 * n * config.data.seq_length * heads // t,
        mlp=2 * n * model.hidden_size * _mlp_width(config, layer) // t + shared,
        up_projections=up if model.multi_latent_attention else 0,
        shared_experts=shared,
    )


def _up_columns(config: Config) -> int:
    """Return the multiply-adds a token of what makes queries, keys and values (MLA: from their latents)."""
    model, h, a = config.model, config.model.hidden_size, config.model.num_attention_heads
    if not model.multi_latent_attention:
        return h * (a + 2 * config.query_groups) * config.head_dim
    queries = (model.q_lora_rank or h) * a * config.query_width
    return queries + model.kv_lora_rank * a * (model.qk_head_dim + model.v_head_dim)


def _down_columns(config: Config) -> int:
    """Return those of the output projection and, with MLA, of what makes the latents."""
    model, h = config.model, config.model.hidden_size
    out = h * model.num_attention_heads * config.value_width
    if not model.multi_latent_attention:
        return out
    return out + h * ((model.q_lora_rank or 0) + model.kv_lora_rank + model.qk_pos_emb_head_dim)


def _mlp_width(config: Config, layer: int) -> int:
    """Return how many columns of h a token is multiplied by in the MLP or routed experts, over all TP ranks."""
    model, matrices = config.model, 3 if config.model.gated_linear_unit else 2
    if not config.is_moe_layer(layer):
        return matrices * config.ffn_size
    routed = model.moe_router_topk * matrices * (model.moe_ffn_hidden_size or config.ffn_size)
    return (model.num_moe_experts or 0) + round(routed * model.moe_imbalance_factor)


def _shared_width(config: Config, layer: int) -> int:
    matrices = 3 if config.model.gated_linear_unit else 2
    width = config.model.moe_shared_expert_intermediate_size or 0
    return matrices * width if config.is_moe_layer(layer) else 0


def recomputed_layer_flops(config: Config, layer: int = 0) -> int:
    """Return what selective recomputation runs again of ``layer``; norms and activations have no products."""
    flops, modules, moe = layer_flops(config, layer), config.recompute_modules, config.is_moe_layer(layer)
    again = 0
    if "core_attn" in modules:
        again += flops.core_attention
    if "mla_up_proj" in modules:
        again += flops.up_projections
    if ("moe" if moe else "mlp") in modules:
        again += flops.mlp
    elif "shared_experts" in modules:
        again += flops.shared_experts
    return again


class StageLayer(NamedTuple):
    """A layer of a pipeline rank."""

    number: int
    """Counted over the whole model from 0."""
    recomputed: bool
    """Whether full recomputation runs all of it again."""


def layers_of_stage(config: Config, stage: int) -> Iterator[StageLayer]:
    """Yield the layers that pipeline rank ``stage`` holds, chunk by chunk.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    for chunk in stage_layers(config, stage):
        for group in layer_groups(config.recompute, len(chunk)):
            for place in group.layers:
                yield StageLayer(chunk[place], group.recompute)


def prediction_flops(config: Config) -> tuple[int, int]:
    """Return what one depth of multi-token prediction does on the last stage: forward, and what is run again of it.

    Its projection [2h] → [h/t], a layer of the kind of the last, and a product with the output layer.
    """
    last, h = config.model.num_layers - 1, config.model.hidden_size
    projection = 4 * tokens_of(config) * h * h // config.parallel.tensor_model_parallel_size
    layer = layer_flops(config, last).total
    again = projection + layer if recomputes_predictions(config) else recomputed_layer_flops(config, last)
    return projection + layer + head_flops(config), again


def head_flops(config: Config) -> int:
    """Return the forward operations of the output layer for one microbatch, on one TP rank."""
    columns = config.padded_vocab_size // config.parallel.tensor_model_parallel_size
    return 2 * tokens_of(config) * config.model.hidden_size * columns


def iteration_flops(config: Config, *, rank: int) -> dict[str, int]:
    """Return the operations of one iteration on ``rank``: ``model`` (forward and backward) and ``recompute``.

    Raises:
        UsageError: the world has no such rank.
        ConfigError: the layers cannot be shared out.
    """
    stage = rank_coordinates(config, rank).pp
    forward = again = 0
    for layer in layers_of_stage(config, stage):
        flops = layer_flops(config, layer.number).total
        forward += flops
        again += flops if layer.recomputed else recomputed_layer_flops(config, layer.number)
    if stage == config.parallel.pipeline_model_parallel_size - 1:
        depths = config.model.mtp_num_layers or 0
        depth = prediction_flops(config) if depths else (0, 0)
        forward += head_flops(config) + depths * depth[0]
        again += depths * depth[1]
    return {"model": 3 * forward * config.num_microbatches, "recompute": again * config.num_microbatches}
