"""How many bytes a stage keeps from forward to backward, in closed form.

This is Table 2 of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models") made
exact for today's layers: GQA, gated MLPs, experts, flash attention, norm statistics, any number format. One row a
tensor; tests hold the model to every row. Symbols as in ``transformer.py``, plus n = s·b tokens and E bytes an element.
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config
from oomscope.model.dispatch import received_rows
from oomscope.model.recompute import layer_groups

_FLASH_RANDOM_STATE = 24
"""The seed (two uint64) and the offset (one) that ``aten::_scaled_dot_product_flash_attention`` returns."""
_INDEX = 8
"""Bytes of a token index (int64)."""

_CORE_ATTENTION_ROWS = frozenset(
    {"softmax", "attention_dropout_mask", "attention_dropped", "lse", "flash_random_state"}
)
_MLP_ROWS = frozenset({"fc1_output", "fc2_input"})
_NORM1_ROWS = frozenset({"norm1_stats", "qkv_input"})
_NORM2_ROWS = frozenset({"norm2_stats", "fc1_input"})

Ledger = dict[str, int]
"""Bytes by tensor."""


class _Sizes(NamedTuple):
    """The symbols of the ledger's formulas."""

    n: int
    element: int
    t: int
    sigma: int
    stats: int
    """Bytes of norm statistics a row: mean and rstd, or rstd, in fp32."""


def element_size(config: Config) -> int:
    """Return the bytes of one parameter or activation element (E)."""
    return 2 if config.precision.bf16 or config.precision.fp16 else 4


def _sizes(config: Config) -> _Sizes:
    t = config.parallel.tensor_model_parallel_size
    return _Sizes(
        n=config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size,
        element=element_size(config),
        t=t,
        sigma=t if config.parallel.sequence_parallel else 1,
        stats=4 if config.model.normalization == "RMSNorm" else 8,
    )


def hidden_bytes(config: Config) -> int:
    """Return the bytes of one hidden state [s/σ, b, h]."""
    size = _sizes(config)
    return size.element * size.n * config.model.hidden_size // size.sigma


def layer_ledger(config: Config) -> Ledger:
    """Return what one layer keeps when nothing is recomputed."""
    size, model = _sizes(config), config.model
    hidden = hidden_bytes(config)
    dropout_mask = size.n * model.hidden_size // size.sigma if model.hidden_dropout > 0 else 0
    stats = size.stats * size.n // size.sigma
    return {
        "norm1_input": hidden,
        "norm1_stats": stats,
        "qkv_input": hidden,
        **_attention_rows(config, size),
        "hidden_dropout_mask1": dropout_mask,
        "norm2_input": hidden,
        "norm2_stats": stats,
        "fc1_input": hidden,
        **(_mlp_rows(config, size) if model.num_moe_experts is None else _expert_rows(config, size)),
        "hidden_dropout_mask2": dropout_mask,
    }


def _attention_rows(config: Config, size: _Sizes) -> Ledger:
    model, s, d = config.model, config.data.seq_length, config.head_dim
    a, g = model.num_attention_heads // size.t, config.query_groups // size.t
    query_key_value = size.element * size.n * (a + 2 * g) * d
    rows: Ledger = {}
    if model.qk_layernorm:  # V stays a view of the projection, which the norms keep whole
        rows["qk_norm_input"] = query_key_value
        rows["qk_norm_stats"] = size.stats * size.n * (a + g)
        query_key_value = size.element * size.n * (a + g) * d
    rows["query_key_value"] = query_key_value
    if config.attention_backend == "flash":
        rows["lse"] = 4 * a * size.n
        rows["flash_random_state"] = _FLASH_RANDOM_STATE
    else:
        rows["softmax"] = size.element * a * s * size.n
        dropped = a * s * size.n if model.attention_dropout > 0 else 0
        rows["attention_dropout_mask"] = dropped
        rows["attention_dropped"] = size.element * dropped
    rows["context"] = size.element * size.n * a * d
    return rows


def _mlp_rows(config: Config, size: _Sizes) -> Ledger:
    width = size.element * size.n * config.ffn_size // size.t
    gated = config.model.gated_linear_unit
    # ReLU's gradient needs its output only, which fc2 keeps anyway.
    fc1_output = 2 * width if gated else 0 if config.model.activation_func == "relu" else width
    return {"fc1_output": fc1_output, "fc2_input": width}


def _expert_rows(config: Config, size: _Sizes) -> Ledger:
    """Rows visit experts: r of this rank's tokens leave, R arrive (``dispatch.py``)."""
    model, ep = config.model, config.parallel.expert_model_parallel_size
    leaving = size.n // size.sigma * model.moe_router_topk
    arriving = ep * received_rows(leaving, ep, model.moe_imbalance_factor)
    width = size.element * arriving * (model.moe_ffn_hidden_size or config.ffn_size)
    return {
        "router_indices": _INDEX * leaving,
        "router_softmax": 4 * leaving,
        "row_order": _INDEX * leaving,
        "row_tokens": _INDEX * leaving,
        "row_probabilities": size.element * arriving,
        "expert_fc1_input": size.element * arriving * model.hidden_size,
        "expert_fc1_output": 2 * width if model.gated_linear_unit else width,
        "expert_fc2_input": width,
    }


def kept_layer_ledger(config: Config) -> Ledger:
    """Return what one layer keeps under the configured selective recomputation."""
    dropped: frozenset[str] = frozenset()
    dense = config.model.num_moe_experts is None
    fused_norms = config.model.transformer_impl == "transformer_engine"
    if "core_attn" in config.recompute_modules:
        dropped |= _CORE_ATTENTION_ROWS
    if "mlp" in config.recompute_modules and dense:
        dropped |= _MLP_ROWS | _NORM2_ROWS if fused_norms else _MLP_ROWS
    if "layernorm" in config.recompute_modules:
        dropped |= frozenset() if fused_norms else _NORM1_ROWS
        dropped |= frozenset() if fused_norms and dense else _NORM2_ROWS
    return {row: size for row, size in layer_ledger(config).items() if row not in dropped}


def layers_bytes(config: Config, num_layers: int) -> int:
    """Return what ``num_layers`` layers of one stage keep of one microbatch, recomputation considered."""
    kept = sum(kept_layer_ledger(config).values())
    shards = config.parallel.tensor_model_parallel_size if config.recompute.distribute_saved_activations else 1
    checkpoint = hidden_bytes(config) // shards
    return sum(
        checkpoint if group.recompute else kept * len(group.layers)
        for group in layer_groups(config.recompute, num_layers)
    )


def embedding_ledger(config: Config) -> Ledger:
    """Return what the embedding keeps: indices, and the dropout mask."""
    size, model = _sizes(config), config.model
    learned = model.position_embedding_type == "learned_absolute"
    return {
        "word_indices": _INDEX * size.n,
        "words_elsewhere": size.n if size.t > 1 else 0,
        "position_indices": _INDEX * config.data.seq_length if learned else 0,
        "embedding_dropout_mask": size.n * model.hidden_size // size.sigma if model.hidden_dropout > 0 else 0,
    }


def head_ledger(config: Config) -> Ledger:
    """Return what the final norm, the output layer and the loss keep; the logits themselves are not kept."""
    size = _sizes(config)
    hidden = hidden_bytes(config)
    return {
        "final_norm_input": hidden,
        "final_norm_stats": size.stats * size.n // size.sigma,
        "output_input": hidden,
        "vocabulary_softmax": 4 * size.n * config.padded_vocab_size // size.t,
        "label_indices": _INDEX * size.n,
        "labels_elsewhere": size.n,
    }


def logits_bytes(config: Config) -> int:
    """Return the output layer's logits, E·n·V/t.

    They are gone when the loss is known, but in 16 bits they live beside their fp32 copy, ``vocabulary_softmax`` of
    :func:`head_ledger`: six bytes a logit at the loss's peak. In fp32 the copy is the logits themselves.
    """
    size = _sizes(config)
    return size.element * size.n * config.padded_vocab_size // size.t


def stage_bytes(config: Config, num_layers: int, *, pre_process: bool, post_process: bool) -> int:
    """Return what one stage keeps of one microbatch between forward and backward."""
    total = layers_bytes(config, num_layers)
    if pre_process:
        total += sum(embedding_ledger(config).values())
    if post_process:
        total += sum(head_ledger(config).values())
    return total


# Parameters ------------------------------------------------------------------------------------------------------


def layer_parameters(config: Config) -> int:
    """Return the parameters of one layer that one rank holds."""
    model, h, d, t = config.model, config.model.hidden_size, config.head_dim, config.parallel.tensor_model_parallel_size
    qkv = (model.num_attention_heads + 2 * config.query_groups) * d // t
    attention = h * (qkv + model.num_attention_heads * d // t)
    biases = qkv + h if model.add_bias_linear else qkv if model.add_qkv_bias else 0
    head_norms = 2 * _norm_parameters(config, d) if model.qk_layernorm else 0
    mlp = _mlp_parameters(config) if model.num_moe_experts is None else model.num_moe_experts * h
    return attention + biases + 2 * _norm_parameters(config, h) + head_norms + mlp + expert_parameters(config)


def _mlp_parameters(config: Config) -> int:
    model, h, t = config.model, config.model.hidden_size, config.parallel.tensor_model_parallel_size
    fc1 = (2 if model.gated_linear_unit else 1) * config.ffn_size // t
    return h * (fc1 + config.ffn_size // t) + (fc1 + h if model.add_bias_linear else 0)


def expert_parameters(config: Config) -> int:
    """Return the parameters of the routed experts of one layer that one rank holds; they have no biases."""
    model = config.model
    if model.num_moe_experts is None:
        return 0
    matrices = 3 if model.gated_linear_unit else 2
    local = model.num_moe_experts // config.parallel.expert_model_parallel_size
    return local * matrices * model.hidden_size * (model.moe_ffn_hidden_size or config.ffn_size)


def stage_parameters(config: Config, num_layers: int, *, pre_process: bool, post_process: bool) -> int:
    """Return the parameters of one stage that one TP rank holds; a weight tied within the stage counts once."""
    model, h = config.model, config.model.hidden_size
    vocabulary = config.padded_vocab_size * h // config.parallel.tensor_model_parallel_size
    total = num_layers * layer_parameters(config)
    if pre_process:
        total += vocabulary
        if model.position_embedding_type == "learned_absolute":
            total += (model.max_position_embeddings or config.data.seq_length) * h
    if post_process:
        tied_here = pre_process and model.share_embeddings_and_output_weights
        total += _norm_parameters(config, h) + (0 if tied_here else vocabulary)
    return total


def _norm_parameters(config: Config, width: int) -> int:
    return width if config.model.normalization == "RMSNorm" else 2 * width
