"""Floating-point operations of matrix products, the rest being negligible.

Narayanan et al. 2021 (appendix) and Korthikanti et al. 2022 (appendix A), for any number of key/value heads, gated
MLPs and experts. A multiply-add is two operations, backward costs twice the forward, and causal attention counts in
full, as in Megatron-LM ``training.py::num_floating_point_operations``: the masked half is not subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.mesh import rank_coordinates
from oomscope.model.recompute import layer_groups


class LayerFlops(NamedTuple):
    """Forward operations of one layer for one microbatch, on one TP rank."""

    projections: int
    """QKV and the output projection."""
    core_attention: int
    """Scores and their weighted sum."""
    mlp: int
    """Dense MLP, or router and experts (routed evenly)."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.projections + self.core_attention + self.mlp


def layer_flops(config: Config) -> LayerFlops:
    """Return the forward operations of one layer."""
    model, t = config.model, config.parallel.tensor_model_parallel_size
    tokens, h = config.data.seq_length * config.data.micro_batch_size, model.hidden_size
    query_width, kv_width = model.num_attention_heads * config.head_dim, config.query_groups * config.head_dim
    return LayerFlops(
        projections=2 * tokens * h * (2 * query_width + 2 * kv_width) // t,
        core_attention=2 * 2 * tokens * config.data.seq_length * query_width // t,
        mlp=2 * tokens * h * _mlp_width(config) // t,
    )


def _mlp_width(config: Config) -> int:
    """Return how many columns of h a token is multiplied by in the MLP, over all TP ranks."""
    model = config.model
    matrices = 3 if model.gated_linear_unit else 2
    if model.num_moe_experts is None:
        return matrices * config.ffn_size
    return model.num_moe_experts + model.moe_router_topk * matrices * (model.moe_ffn_hidden_size or config.ffn_size)


def recomputed_layer_flops(config: Config) -> int:
    """Return what selective recomputation runs again of one layer."""
    layer = layer_flops(config)
    modules = config.recompute_modules
    return ("core_attn" in modules) * layer.core_attention + (
        "mlp" in modules and config.model.num_moe_experts is None
    ) * layer.mlp


def iteration_flops(config: Config, *, rank: int) -> dict[str, int]:
    """Return the operations of one iteration on ``rank``: ``model`` (forward and backward) and ``recompute``.

    Raises:
        UsageError: the world has no such rank.
        ConfigError: the layers cannot be shared out evenly.
    """
    stage = rank_coordinates(config, rank).pp
    chunks = [len(layers) for layers in stage_layers(config, stage)]
    layers = sum(chunks)
    layer = layer_flops(config).total
    forward = layers * layer
    if stage == config.parallel.pipeline_model_parallel_size - 1:
        tokens = config.data.seq_length * config.data.micro_batch_size
        columns = config.padded_vocab_size // config.parallel.tensor_model_parallel_size
        forward += 2 * tokens * config.model.hidden_size * columns
    groups = [group for layers_of_chunk in chunks for group in layer_groups(config.recompute, layers_of_chunk)]
    whole = sum(len(group.layers) for group in groups if group.recompute)
    again = whole * layer + (layers - whole) * recomputed_layer_flops(config)
    return {"model": 3 * forward * config.num_microbatches, "recompute": again * config.num_microbatches}
