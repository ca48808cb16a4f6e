"""How many elements the largest tensor has that a layer, or a module of it, saves for backward: an upper bound.

Offloading leaves small tensors on the device; where even the bound is small, nothing at all is offloaded.
"""

from __future__ import annotations

from oomscope.config.schema import Config

SMALLEST_OFFLOADED = 256 * 1024
"""Elements that a tensor must have for layer offloading to take it (Transformer Engine ``pytorch/cpu_offload.py``)."""


def largest_of_layer(config: Config) -> int:
    """Return the bound over all that a layer saves, in elements."""
    widths = (config.model.hidden_size, 2 * config.ffn_size, _heads_width(config))
    return max(_tokens(config) * max(widths), _scores(config), largest_of_module(config, "expert_fc1"))


def largest_of_module(config: Config, module: str) -> int:
    """Return the bound over what ``module`` of ``offload_modules`` saves, in elements."""
    tokens, hidden = _tokens(config), config.model.hidden_size
    match module:
        case "core_attn":
            return max(tokens * _heads_width(config), _scores(config))
        case "attn_proj":
            return tokens * _heads_width(config)
        case "expert_fc1" | "moe_act" | "fused_group_mlp":
            return _routed(config) * max(hidden, 2 * config.expert_ffn_size)
        case _:
            return tokens * max(hidden, _heads_width(config))


def _tokens(config: Config) -> int:
    return config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size


def _heads_width(config: Config) -> int:
    """Return the width of queries, keys and values together."""
    return config.model.num_attention_heads * (2 * config.query_width + config.value_width)


def _scores(config: Config) -> int:
    """Return the elements of the attention scores, where they are kept."""
    if config.attention_backend != "unfused":
        return 0
    return config.model.num_attention_heads * _tokens(config) * config.data.seq_length


def _routed(config: Config) -> int:
    """Return the rows of tokens that the experts of a rank receive at most: all that all ranks send out."""
    if config.model.num_moe_experts is None:
        return 0
    ranks = config.parallel.tensor_model_parallel_size * config.parallel.expert_model_parallel_size
    capacity = max(1.0, config.model.moe_expert_capacity_factor or 1.0)
    return int(_tokens(config) * ranks * config.model.moe_router_topk * capacity)
