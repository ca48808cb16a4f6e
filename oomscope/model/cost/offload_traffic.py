"""How many bytes of activations one iteration sends to the host: those that the layers' ledgers name as saved.

What goes is decided by the same rules as in the model, ``layer_offload.py`` for whole layers and
``offload_plan.py`` for single modules; sizes are the rows of ``ledger.py``, without running anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from oomscope.config.layer_split import stage_layers
from oomscope.config.saved_tensors import SMALLEST_OFFLOADED
from oomscope.config.schema import Config
from oomscope.model.cost.ledger import Ledger, element_size, kept_layer_ledger
from oomscope.model.memory.layer_groups import layer_groups, recomputes_predictions
from oomscope.model.memory.offload_plan import SavedGroup, resident_groups
from oomscope.model.parallel.turns import pass_order

_SAVED_BY = {
    "attn_norm": {"norm1_input"},
    "qkv_linear": {"qkv_input", "query_latent", "key_value_latent", "latent_norm_output"},
    "core_attn": {
        "query_key_value",
        "attention_output",
        "context",
        "softmax",
        "attention_dropout_mask",
        "attention_dropped",
        "lse",
    },
    "attn_proj": {"context"},
    "mlp_norm": {"norm2_input"},
    "expert_fc1": {"expert_fc1_input"},
    "moe_act": {"expert_fc1_output", "expert_act_output"},
}
"""Rows of the ledger that each module saves, in the order in which a layer runs the modules; those that two save go
twice, as in Megatron-Core ``fine_grained_activation_offload.py``, ``bulk_offload_group``."""

_OF_FOUR_BYTES = frozenset(
    {"lse", "norm1_stats", "norm2_stats", "qk_norm_stats", "latent_norm_stats", "router_softmax", "router_sigmoid"}
    | {"router_quotient", "balancing_scores", "balancing_sums", "row_map", "chunk_maps"}
)
_OF_EIGHT_BYTES = frozenset({"router_indices", "row_places", "row_tokens"})
_OF_ONE_BYTE = frozenset(
    {"attention_dropout_mask", "hidden_dropout_mask1", "hidden_dropout_mask2", "router_groups_mask", "router_visits"}
    | {"capacity_mask", "local_visits"}
)


def offloaded_bytes(config: Config, stage: int) -> int:
    """Return the bytes of activations that pipeline rank ``stage`` sends to the host in an iteration.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    offload = config.offload
    if offload.cpu_offloading and offload.cpu_offloading_activations:
        layers = [layer for chunk in stage_layers(config, stage) for layer in chunk]
        going = layers[: offload.cpu_offloading_num_layers]
        return config.num_microbatches * sum(_of_layer(config, layer) for layer in going)
    if offload.fine_grained_activation_offloading:
        return _of_modules(config, stage)
    return 0


def _of_layer(config: Config, layer: int) -> int:
    """Return what goes of a whole layer; views of parts of a tensor stay, as Q, K and V that nothing has copied are."""
    model = config.model
    copied = model.position_embedding_type == "rope" or model.qk_layernorm or model.multi_latent_attention
    views = {"qk_norm_input"} if copied or config.parallel.context_parallel_size > 1 else {"query_key_value"}
    rows = _large_rows(config, layer, SMALLEST_OFFLOADED)
    return sum(size for row, size in rows.items() if row not in views)


def _of_modules(config: Config, stage: int) -> int:
    order = pass_order(config, stage)
    chunks = [_saved_of_chunk(config, layers) for layers in stage_layers(config, stage)]
    if stage == config.parallel.pipeline_model_parallel_size - 1:
        chunks[-1] += _saved_of_predictions(config)
    passes = [[SavedGroup(name, sum(rows.values())) for name, _, rows in chunks[chunk]] for chunk in order.chunks]
    resident = resident_groups(passes, order, config.offload.activation_offload_fraction)
    return sum(
        sum(sum(rows.values()) for number, (_, _, rows) in enumerate(chunks[chunk]) if number not in staying)
        for chunk, staying in zip(order.chunks, resident, strict=True)
    )


def _saved_of_chunk(config: Config, layers: range) -> list[tuple[str, int, Ledger]]:
    """Return module, layer and rows of each group that one pass through the chunk saves, in order."""
    return [
        (module, layers[place], rows)
        for group in layer_groups(config.recompute, len(layers))
        if not group.recompute
        for place in group.layers
        for module, rows in _saved_of_layer(config, layers[place])
    ]


def _saved_of_predictions(config: Config) -> list[tuple[str, int, Ledger]]:
    """Return the same of the layers of multi-token prediction, which follow the last one and are of its kind."""
    if recomputes_predictions(config):
        return []
    last = config.model.num_layers - 1
    return [
        (module, last + 1 + depth, rows)
        for depth in range(config.model.mtp_num_layers or 0)
        for module, rows in _saved_of_layer(config, last)
    ]


def _saved_of_layer(config: Config, layer: int) -> Iterable[tuple[str, Ledger]]:
    """Yield the modules of ``layer`` that are offloaded; a norm that the layer behind it has fused belongs to that."""
    fused = config.model.transformer_impl == "transformer_engine"
    large = _large_rows(config, layer, config.offload.min_offloaded_tensor_size)
    own_norm1 = not fused or config.model.multi_latent_attention
    moe = config.is_moe_layer(layer)
    absent = {
        *(() if own_norm1 else ("attn_norm",)),
        *(() if moe or not fused else ("mlp_norm",)),
        *(() if moe and config.model.moe_grouped_gemm else ("expert_fc1", "moe_act")),
    }
    saved_by = {
        **_SAVED_BY,
        "qkv_linear": _SAVED_BY["qkv_linear"] | (set() if own_norm1 else {"norm1_input"}),
        # the gradient of a plain product needs no output
        "core_attn": _SAVED_BY["core_attn"] - (set() if config.attention_backend == "flash" else {"context"}),
    }
    twice = _saved_twice(config)
    for module, saved in saved_by.items():
        if module in config.offload.offload_modules and module not in absent:
            yield module, {row: size * (1 + (row in twice)) for row, size in large.items() if row in saved}


def _saved_twice(config: Config) -> set[str]:
    """Return rows that two operations of one module save: the inputs of both down-projections, and probabilities."""
    both_down = {"qkv_input"} if config.model.multi_latent_attention else set()
    return both_down | ({"softmax"} if not config.model.attention_dropout else set())


def _large_rows(config: Config, layer: int, smallest: int) -> Ledger:
    """Return what ``layer`` keeps in tensors of ``smallest`` elements or more."""
    kept = kept_layer_ledger(config, layer)
    return {row: size for row, size in kept.items() if size >= smallest * _bytes_an_element(config, row)}


def _bytes_an_element(config: Config, row: str) -> int:
    sizes = {4: _OF_FOUR_BYTES, 8: _OF_EIGHT_BYTES, 1: _OF_ONE_BYTE}
    return next((size for size, rows in sizes.items() if row in rows), element_size(config))
