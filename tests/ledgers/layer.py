"""How many bytes a layer keeps from forward to backward, in closed form.

This is Table 2 of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models") made
exact for today's layers: GQA, latent attention, gated MLPs, experts, flash attention, context parallelism, norm
statistics, any number format. One row a tensor; tests hold the model to every row. Symbols as in ``gpt/stage.py``,
plus n = s·b tokens (of one context-parallel rank) and E bytes an element. Layers are counted over the whole model.
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import element_bytes
from oomscope.model.moe.token_dispatcher import Plan, is_padded, nominal_plan
from oomscope.model.parallel.parallel_state import ParallelState, Place, expert_tensor_parallel_size

_FLASH_RANDOM_STATE = 24
"""The seed (two uint64) and the offset (one) that ``aten::_scaled_dot_product_flash_attention`` returns."""
_CUDNN_RANDOM_STATE = 16
"""Seed and offset, an int64 each, of ``aten::_scaled_dot_product_cudnn_attention``."""
_INDEX = 8
"""Bytes of a token index (int64)."""

_CORE_ATTENTION_ROWS = frozenset(
    {"softmax", "attention_dropout_mask", "attention_dropped", "lse", "flash_random_state", "attention_output"}
)
_MLP_ROWS = frozenset({"fc1_output", "fc2_input"})
_UP_PROJECTION_ROWS = frozenset({"query_key_value", "rotary_table"})
_LATENT_NORM_ROWS = frozenset({"latent_norm_stats", "latent_norm_output"})
_SHARED_ROWS = frozenset({"shared_fc1_output", "shared_fc2_input"})
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


def _sizes(config: Config) -> _Sizes:
    t = config.parallel.tensor_model_parallel_size
    return _Sizes(
        n=config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size,
        element=element_bytes(config),
        t=t,
        sigma=t if config.parallel.sequence_parallel else 1,
        stats=4 if config.model.normalization == "RMSNorm" else 8,
    )


def hidden_bytes(config: Config) -> int:
    """Return the bytes of one hidden state [s/σ, b, h]."""
    size = _sizes(config)
    return size.element * size.n * config.model.hidden_size // size.sigma


def layer_ledger(config: Config, layer: int = 0, *, flash_attn: bool = False) -> Ledger:
    """Return what ``layer`` keeps when nothing is recomputed.

    Args:
        config: what is trained.
        layer: its place in the model.
        flash_attn: fused attention is flash-attn's and not cuDNN's (``transformer_engine.takes_flash_attn``).
    """
    size, model = _sizes(config), config.model
    hidden = hidden_bytes(config)
    dropout_mask = size.n * model.hidden_size // size.sigma if model.hidden_dropout > 0 else 0
    stats = size.stats * size.n // size.sigma
    batch_first = flash_attn and _is_batch_first(config)
    return {
        "norm1_input": hidden,
        "norm1_stats": stats,
        "qkv_input": hidden,
        **(_latent_rows(config, size) if model.multi_latent_attention else _projection_rows(config, size)),
        "rotary_table": _rotary_bytes(config, size),
        **_core_rows(config, size, batch_first=batch_first),
        "hidden_dropout_mask1": dropout_mask,
        "norm2_input": hidden,
        "norm2_stats": stats,
        "fc1_input": hidden,
        **(_expert_rows(config, size) if config.is_moe_layer(layer) else _mlp_rows(config, size)),
        "hidden_dropout_mask2": dropout_mask,
    }


def _is_batch_first(config: Config) -> bool:
    """Whether flash-attn, where the card takes it, is given copies of Q, K and V and keeps an output of its own."""
    copied = "core_attn" not in config.recompute_modules and _communication(config) != "a2a"
    return config.attention_backend == "flash" and config.query_width == config.value_width and copied


def _projection_rows(config: Config, size: _Sizes) -> Ledger:
    """Q, K and V; where nothing copies them they are views of their projection, which stays whole."""
    model, d = config.model, config.head_dim
    a, g = model.num_attention_heads // size.t, config.query_groups // size.t
    head = size.element * size.n * d
    whole, copied = head * (a + 2 * g), head * a if 1 < g < a else 0
    local, recomputed = model.transformer_impl == "local", "core_attn" in config.recompute_modules
    normed: Ledger = {}
    if model.qk_layernorm:
        normed["qk_norm_input"] = whole + copied if local else head * (a + g)  # Transformer Engine's norms copy
        normed["qk_norm_stats"] = size.stats * size.n * (a + g)
    turned = head * (a + g) if normed or model.position_embedding_type == "rope" else copied
    if config.attention_backend == "unfused" and not recomputed and a != g:
        return {**normed, "query_key_value": head * 3 * a}  # K and V repeated
    if local and normed:
        return {**normed, "query_key_value": turned}  # V is a view of qk_norm_input
    if local or recomputed:
        return {**normed, "query_key_value": whole + turned}  # V is a view of the projection
    return {**normed, "query_key_value": whole}


def _rotary_bytes(config: Config, size: _Sizes) -> int:
    """Return the cosines and sines that unfused rotations of queries and of keys keep, in the width of a head."""
    model = config.model
    if model.apply_rope_fusion or not (model.multi_latent_attention or model.position_embedding_type == "rope"):
        return 0
    width = model.qk_pos_emb_head_dim if model.multi_latent_attention else config.head_dim
    return 2 * 2 * size.element * width * size.n // config.data.micro_batch_size


def _communication(config: Config) -> str | None:
    """Return how core attention communicates, None where it need not, or where a checkpoint keeps its arguments."""
    if config.parallel.context_parallel_size == 1 or "core_attn" in config.recompute_modules:
        return None
    return config.cp_comm_type


def _latent_rows(config: Config, size: _Sizes) -> Ledger:
    """The latents are on 1/σ of the tokens; that of keys and values holds the rotary key too."""
    model, tokens = config.model, size.n // size.sigma
    query, key_value = model.q_lora_rank or 0, model.kv_lora_rank
    rows = {
        "query_latent": size.element * tokens * query,
        "key_value_latent": size.element * tokens * (key_value + model.qk_pos_emb_head_dim),
    }
    if model.qk_layernorm:
        rows["latent_norm_stats"] = size.stats * tokens * (2 if query else 1)
        rows["latent_norm_output"] = size.element * tokens * (query + key_value)
    heads = model.num_attention_heads // size.t
    rows["query_key_value"] = size.element * size.n * heads * (2 * config.query_width + config.value_width)
    return rows


def _core_rows(config: Config, size: _Sizes, *, batch_first: bool) -> Ledger:
    model, a = config.model, config.model.num_attention_heads // size.t
    rows: Ledger = {}
    context = size.element * size.n * a * config.value_width
    if config.attention_backend == "flash":
        communication = _communication(config)
        ring = config.context_levels[1]
        kernels = {"p2p": ring, "a2a+p2p": ring, "all_gather": 2}.get(communication or "", 1)
        rows["lse"] = 4 * a * size.n
        random_state = _CUDNN_RANDOM_STATE if config.query_width != config.value_width else _FLASH_RANDOM_STATE
        rows["flash_random_state"] = kernels * random_state
        rows["attention_output"] = context if batch_first or communication in ("a2a", "a2a+p2p") else 0
    else:
        scores = a * config.data.seq_length * size.n
        rows["softmax"] = (4 if config.softmax == "fp32" else size.element) * scores
        dropped = scores if model.attention_dropout > 0 else 0
        rows["attention_dropout_mask"] = dropped
        rows["attention_dropped"] = size.element * (scores if config.softmax == "fp32" else dropped)
    rows["context"] = context
    return rows


def _mlp_rows(config: Config, size: _Sizes, ffn_size: int | None = None) -> Ledger:
    width = size.element * size.n * (ffn_size or config.ffn_size) // size.t
    relu = config.model.activation_func == "relu"  # its gradient needs its output only, which fc2 keeps without a gate
    if config.model.gated_linear_unit:
        fc1_output = 2 * width if config.fuses_gate or relu else 4 * width
    else:
        fc1_output = 0 if relu else width
    return {"fc1_output": fc1_output, "fc2_input": width}


def _expert_rows(config: Config, size: _Sizes) -> Ledger:
    """Rows visit experts: some of this rank's tokens' leave, R arrive (``moe/token_dispatcher.py``)."""
    model, tokens = config.model, size.n // size.sigma
    plan = nominal_plan(tokens, model, _experts_on(config))
    arriving = sum(plan.by_expert)
    routed = _router_element(config)
    width = size.element * arriving * config.expert_ffn_size // expert_tensor_parallel_size(config)
    dispatched = {"alltoall": _exchange_rows, "allgather": _gather_rows}[model.moe_token_dispatcher_type]
    return {
        **_router_rows(config, tokens),
        **dispatched(config, tokens, plan),
        "row_probabilities": routed * arriving,
        "expert_fc1_input": size.element * arriving * model.hidden_size,
        **_expert_activation_rows(config, width),
        "expert_fc2_input": width,
        **_shared_rows(config, size),
    }


def _expert_activation_rows(config: Config, width: int) -> Ledger:
    """What the non-linearity keeps beside the weights, of ``width`` bytes a matrix [R, f]: its input and its outputs.

    SwiGLU is fused with the weights. ReLU's gradient needs its output alone; a gate's product is kept for the weights.
    """
    model = config.model
    gated, relu = model.gated_linear_unit, model.activation_func == "relu"
    if gated and model.activation_func == "silu":
        return {"expert_fc1_output": 2 * width}
    outputs = 2 * width if gated else width
    return {"expert_fc1_output": 2 * width if gated else 0 if relu else width, "expert_act_output": outputs}


def _experts_on(config: Config) -> ParallelState:
    ranks = {"ep": config.parallel.expert_model_parallel_size, "expert_tp": expert_tensor_parallel_size(config)}
    ranks["expert_tp_ep"] = ranks["ep"] * ranks["expert_tp"]
    return ParallelState(**{axis: Place(size=size) for axis, size in ranks.items()})


def _router_element(config: Config) -> int:
    """Return the bytes of a logit or probability of the router."""
    named = {"fp32": 4, "fp64": 8}
    return element_bytes(config) if config.model.moe_router_dtype is None else named[config.model.moe_router_dtype]


def _router_rows(config: Config, tokens: int) -> Ledger:
    """What the choice of experts keeps (``moe/routing.py``), and the losses that balance it (``moe/router.py``)."""
    model, experts, routed = config.model, config.model.num_moe_experts or 0, _router_element(config)
    return {
        "router_logits": routed * tokens * experts if model.moe_z_loss_coeff else 0,
        "router_logsumexp": routed * tokens if model.moe_z_loss_coeff else 0,
        **(
            _sinkhorn_rows(config, tokens)
            if model.moe_router_load_balancing_type == "sinkhorn"
            else _top_k_rows(config, tokens)
        ),
        **(_balancing_rows(config, tokens) if config.aux_loss_coeff > 0 else {}),
        "capacity_mask": tokens * experts if model.moe_expert_capacity_factor is not None else 0,
    }


def _top_k_rows(config: Config, tokens: int) -> Ledger:
    """Softmax: over the chosen or, before the choice, over all. Sigmoid: of all, and the quotient by their sum.

    Limited groups keep a mask, unless a bias makes the choice: then no gradient passes it.
    """
    model, k, experts = config.model, config.model.moe_router_topk, config.model.num_moe_experts or 0
    indices = {"router_indices": _INDEX * tokens * k}
    if model.moe_router_group_topk is not None and not model.moe_router_enable_expert_bias:
        indices["router_groups_mask"] = tokens * experts
    if model.moe_router_score_function == "softmax":
        return {**indices, "router_softmax": 4 * tokens * (experts if model.moe_router_pre_softmax else k)}
    quotient = 4 * tokens * (k + 1) if k > 1 else 0
    return {**indices, "router_sigmoid": 4 * tokens * experts, "router_quotient": quotient}


def _sinkhorn_rows(config: Config, tokens: int) -> Ledger:
    model, experts = config.model, config.model.num_moe_experts or 0
    scores = _router_element(config) if model.moe_router_topk == 1 else 4
    return {"router_softmax": scores * tokens * experts, "router_visits": tokens * experts}


def _balancing_rows(config: Config, tokens: int) -> Ledger:
    """The scores of all experts, and how often they were visited: each sequence apart, or averaged in fp32."""
    model, experts = config.model, config.model.num_moe_experts or 0
    sigmoid = model.moe_router_score_function == "sigmoid"
    sequences = config.data.micro_batch_size if model.moe_router_load_balancing_type == "seq_aux_loss" else 1
    count = 4 if model.moe_router_load_balancing_type == "global_aux_loss" else _INDEX
    return {
        "balancing_scores": 4 * tokens * experts,
        "balancing_sums": 4 * tokens if sigmoid else 0,
        "balancing_counts": count * sequences * experts,
    }


def _exchange_rows(config: Config, tokens: int, plan: Plan) -> Ledger:
    """What ``alltoall`` keeps: a sort of all places [E, n] and the tokens of the rows, or the fused kernels' maps."""
    model, experts, leaving = config.model, config.model.num_moe_experts or 0, sum(plan.sent)
    if model.moe_permute_fusion:
        sorts = 2 if experts > config.parallel.expert_model_parallel_size else 0
        return {"row_map": 4 * tokens * (2 * experts + 1), "chunk_maps": 4 * sorts * sum(plan.by_expert)}
    places = leaving if is_padded(model) else tokens * experts
    return {"row_places": _INDEX * places, "row_tokens": _INDEX * leaving}


def _gather_rows(config: Config, tokens: int, plan: Plan) -> Ledger:
    """What ``allgather`` keeps: the local experts' columns of tp_ep_group's probabilities and visits, and a map."""
    model, state = config.model, _experts_on(config)
    tp_ep_group, local = tokens * state.expert_tp_ep.size, (model.num_moe_experts or 0) // state.ep.size
    return {
        "local_probabilities": _router_element(config) * tp_ep_group * local,
        "local_visits": tp_ep_group * local,
        "row_map": 4 * tp_ep_group * (2 * local + 1) if model.moe_permute_fusion else 0,
        "row_tokens": 0 if model.moe_permute_fusion else _INDEX * sum(plan.by_expert),
    }


def _shared_rows(config: Config, size: _Sizes) -> Ledger:
    shared = config.model.moe_shared_expert_intermediate_size
    if shared is None:
        return {}
    dense = _mlp_rows(config, size, shared)
    return {"shared_fc1_output": dense["fc1_output"], "shared_fc2_input": dense["fc2_input"]}


def kept_layer_ledger(config: Config, layer: int = 0, *, flash_attn: bool = False) -> Ledger:
    """Return what ``layer`` keeps under the configured selective recomputation; arguments as of ``layer_ledger``."""
    modules, moe = config.recompute_modules, config.is_moe_layer(layer)
    fused_norms = config.model.transformer_impl == "transformer_engine"
    latent = config.model.multi_latent_attention
    ledger = layer_ledger(config, layer, flash_attn=flash_attn)
    dropped: frozenset[str] = frozenset()
    if "core_attn" in modules:
        dropped |= _CORE_ATTENTION_ROWS
    if "mla_up_proj" in modules and latent:
        dropped |= _UP_PROJECTION_ROWS | _LATENT_NORM_ROWS if fused_norms else _UP_PROJECTION_ROWS
        ledger["rotary_key"] = _gathered_key_bytes(config)
    if "mlp" in modules and not moe:
        dropped |= _MLP_ROWS | _NORM2_ROWS if fused_norms else _MLP_ROWS
    if "layernorm" in modules:
        dropped |= frozenset() if fused_norms and not latent else _NORM1_ROWS
        dropped |= frozenset() if fused_norms and not moe else _NORM2_ROWS
    if moe:
        dropped |= _dropped_of_experts(config)
    return {row: size for row, size in ledger.items() if row not in dropped}


def _dropped_of_experts(config: Config) -> frozenset[str]:
    modules, size = config.recompute_modules, _sizes(config)
    dropped: frozenset[str] = frozenset()
    if "moe" in modules:
        dropped |= _expert_rows(config, size).keys()
    if "moe_act" in modules and config.model.moe_grouped_gemm:
        dropped |= {"expert_act_output", "expert_fc2_input"}
    return dropped | _SHARED_ROWS if "shared_experts" in modules else dropped


def _gathered_key_bytes(config: Config) -> int:
    """Return the rotary key of the whole sequence; without sequence parallelism it is a part of the latent."""
    size = _sizes(config)
    return size.element * size.n * config.model.qk_pos_emb_head_dim if size.sigma > 1 else 0
