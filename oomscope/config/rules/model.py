"""Rules of the transformer, its experts, its number formats and products in fp8."""

from __future__ import annotations

from oomscope.config.rules.rule import ARGS, TRANSFORMER, Rule, conflict, error, needs, warning
from oomscope.config.schema import Config

_FLASH = "PyTorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
_MTP = "Megatron-Core transformer/multi_token_prediction.py"
_UTILS = "Transformer Engine pytorch/utils.py, assert_dim_for_fp8_exec"
_ROWS = 8
_COLUMNS = 16
_BLOCKS = {"blockwise": 128, "mxfp8": 32}


def _learned_positions_fall_short(config: Config) -> bool:
    rows = config.model.max_position_embeddings
    learned = config.model.position_embedding_type == "learned_absolute"
    return learned and rows is not None and rows < config.data.seq_length


def _recomputes(config: Config, method: str) -> bool:
    recompute, predicts = config.recompute, config.model.mtp_num_layers is not None
    return predicts and recompute.recompute_granularity == "full" and recompute.recompute_method == method


def _odd_widths(config: Config) -> list[str]:
    """Return the widths of a rank's products in fp8 that are no multiple of 16, or of a block that has a scale."""
    model, t, precision = config.model, config.parallel.tensor_model_parallel_size, config.precision
    multiple = _BLOCKS.get(precision.fp8_recipe, _COLUMNS)
    widths = {
        "hidden_size": model.hidden_size,
        "the projection's input": model.num_attention_heads * config.head_dim // t,
        "Q, K and V": (model.num_attention_heads + 2 * config.query_groups) * config.head_dim // t,
        "ffn_hidden_size": config.ffn_size // t,
    }
    odd = [f"{name} {width} is no multiple of {multiple}" for name, width in widths.items() if width % multiple]
    return odd if precision.fp8 is not None else []


def _odd_rows(config: Config) -> str | None:
    """Return the tokens of a rank's products in fp8, where they are no multiple of 8 or of a block that has a scale."""
    parallel, precision = config.parallel, config.precision
    shards = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
    rows = config.data.seq_length * config.data.micro_batch_size // (parallel.context_parallel_size * shards)
    multiple = _BLOCKS.get(precision.fp8_recipe, _ROWS)
    return f"{rows} tokens, no multiple of {multiple}" if precision.fp8 is not None and rows % multiple else None


def _too_many_bf16_layers(config: Config) -> list[str]:
    precision, most = config.precision, config.model.num_layers // config.parallel.pipeline_model_parallel_size
    if precision.fp8 is None or not precision.first_last_layers_bf16:
        return []
    keys = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
    return [f"{key} is {count}" for key in keys if (count := getattr(precision, key)) > most]


MODEL_RULES: tuple[Rule, ...] = (
    conflict(
        "M1",
        "precision.fp16",
        "precision.bf16=true",
        TRANSFORMER,
        why="which is the default",
        remedy="set one of them to false",
    ),
    error(
        id="M2",
        keys="model.num_attention_heads model.hidden_size",
        applies=lambda c: c.model.kv_channels is None and c.model.hidden_size % c.model.num_attention_heads,
        message="a hidden_size of {c.model.hidden_size} cannot be split evenly over {c.model.num_attention_heads}"
        " attention heads",
        remedy="let num_attention_heads divide hidden_size, or set kv_channels",
        source=ARGS,
    ),
    error(
        id="M3",
        keys="model.kv_channels model.num_attention_heads",
        applies=lambda c: c.model.position_embedding_type == "rope" and c.head_dim % 2,
        message="heads of width {c.head_dim} cannot be rotated in pairs",
        remedy="let kv_channels be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    error(
        id="M4",
        keys="model.max_position_embeddings data.seq_length",
        applies=_learned_positions_fall_short,
        message="a sequence of {c.data.seq_length} tokens is longer than the table of "
        "{c.model.max_position_embeddings} learned positions",
        remedy="raise max_position_embeddings, or use rope",
        source=ARGS,
    ),
    error(
        id="M5",
        keys="model.attention_backend precision.bf16",
        applies=lambda c: (
            c.model.attention_backend in ("flash", "fused") and not (c.precision.bf16 or c.precision.fp16)
        ),
        message="{c.model.attention_backend} attention has no kernel for fp32",
        remedy="set precision.bf16, or attention_backend to unfused",
        source=f"{_FLASH}, check_dtypes_low_precision",
    ),
    error(
        id="M6",
        keys="model.kv_channels model.attention_backend model.hidden_size",
        applies=lambda c: c.attention_backend == "flash" and c.head_dim > 256,
        message="flash attention has no kernel for heads of width {c.head_dim}",
        remedy="use more or narrower heads, or set attention_backend to unfused",
        source=f"{_FLASH}, check_head_dim_size_flash",
    ),
    error(
        id="M7",
        keys="model.moe_router_topk model.num_moe_experts",
        applies=lambda c: c.model.num_moe_experts is not None and c.model.moe_router_topk > c.model.num_moe_experts,
        message="moe_router_topk is {c.model.moe_router_topk}, and there are {c.model.num_moe_experts} experts",
        remedy="let moe_router_topk be at most num_moe_experts",
        source="Megatron-Core transformer/moe/moe_utils.py (torch.topk)",
    ),
    needs("M10", "precision.fp8_param", "precision.fp8", TRANSFORMER),
    error(
        id="A4",
        keys="model.qk_pos_emb_head_dim",
        applies=lambda c: c.model.multi_latent_attention and c.model.qk_pos_emb_head_dim % 2,
        message="rotary parts of width {c.model.qk_pos_emb_head_dim} cannot be rotated in pairs",
        remedy="let qk_pos_emb_head_dim be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    error(
        id="A5",
        keys="model.num_query_groups model.multi_latent_attention",
        applies=lambda c: c.model.multi_latent_attention and c.query_groups != c.model.num_attention_heads,
        message="num_query_groups is given, and every head of multi-latent attention has a key of its own",
        remedy="set num_query_groups to null",
        source="Megatron-LM training/theoretical_memory_usage.py",
    ),
    conflict(
        "A9",
        "model.multi_latent_attention",
        "model.transformer_impl=local",
        "Megatron-Core transformer/multi_latent_attention.py; transformer/dot_product_attention.py",
        why="whose attention takes no widths of keys and values of its own (a TypeError there)",
        remedy="set transformer_impl to transformer_engine, or multi_latent_attention to false",
    ),
    conflict(
        "MTP1",
        "model.mtp_num_layers",
        "model.position_embedding_type=learned_absolute",
        ARGS,
        remedy="set position_embedding_type to rope or none, or mtp_num_layers to null",
    ),
    error(
        id="MTP2",
        keys="model.mtp_num_layers recompute.recompute_num_layers",
        applies=lambda c: _recomputes(c, "uniform") and (c.recompute.recompute_num_layers or 1) != 1,
        message="uniform recomputation of several layers at once does not work with multi-token prediction",
        remedy="set recompute_num_layers to 1",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    warning(
        id="MTP3",
        keys="model.mtp_num_layers recompute.recompute_method",
        applies=lambda c: _recomputes(c, "block"),
        message="the layers of multi-token prediction keep everything, since recompute_method is block",
        remedy="set recompute_method to uniform to recompute them too",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    error(
        id="MTP4",
        keys="model.mtp_num_layers recompute.distribute_saved_activations",
        applies=lambda c: _recomputes(c, "uniform") and c.recompute.distribute_saved_activations,
        message="distribute_saved_activations cuts the hidden state that multi-token prediction joins with the others",
        remedy="set distribute_saved_activations to false",
        source=f"{_MTP}, MultiTokenPredictionBlock.forward; tensor_parallel/random.py, CheckpointFunction",
    ),
    warning(
        id="Q1",
        keys="precision.fp8 model.transformer_impl",
        applies=lambda c: c.precision.fp8 is not None and c.model.transformer_impl != "transformer_engine",
        message="fp8 is set, and does nothing in the layers of transformer_impl local",
        remedy="set transformer_impl to transformer_engine, or fp8 to null",
        source="Megatron-Core fp8_utils.py, get_fp8_context",
    ),
    error(
        id="Q2",
        keys="precision.first_last_layers_bf16 precision.fp8_recipe",
        applies=lambda c: (
            c.precision.fp8 is not None and c.precision.first_last_layers_bf16 and c.precision.fp8_recipe == "delayed"
        ),
        message="delayed scaling does not leave the first and last layers in bf16",
        remedy="choose another fp8_recipe, or set first_last_layers_bf16 to false",
        source=TRANSFORMER,
    ),
    error(
        id="Q3",
        keys="precision.num_layers_at_start_in_bf16 precision.num_layers_at_end_in_bf16",
        applies=_too_many_bf16_layers,
        message="{found}, more than the layers of a pipeline stage",
        remedy="lower it",
        source=TRANSFORMER,
    ),
    needs("Q4", "precision.fp8_param", "optimizer.use_distributed_optimizer", ARGS),
    error(
        id="Q5",
        keys="precision.fp8 precision.fp8_recipe",
        applies=_odd_widths,
        message="on a rank {found}, as fp8_recipe {c.precision.fp8_recipe} needs",
        remedy="change the width or the tensor parallelism",
        source=_UTILS,
    ),
    error(
        id="Q6",
        keys="precision.fp8 data.seq_length data.micro_batch_size",
        applies=_odd_rows,
        message="a rank multiplies {found}, as fp8_recipe {c.precision.fp8_recipe} needs",
        remedy="change seq_length or micro_batch_size",
        source=_UTILS,
    ),
)


_ROUTER = "Megatron-Core transformer/moe/router.py"


def _by_sinkhorn(config: Config) -> bool:
    return config.model.num_moe_experts is not None and config.model.moe_router_load_balancing_type == "sinkhorn"


def _limits_groups(config: Config) -> bool:
    return config.model.num_moe_experts is not None and config.model.moe_router_group_topk is not None


def _groups_do_not_fit(config: Config) -> bool:
    model = config.model
    if not _limits_groups(config) or model.moe_router_num_groups is None:
        return False
    uneven = (model.num_moe_experts or 0) % model.moe_router_num_groups != 0
    return uneven or (model.moe_router_group_topk or 0) > model.moe_router_num_groups


def _too_few_in_a_group(config: Config) -> int | None:
    """Return the experts of a group, where those that a token may visit do not hold moe_router_topk experts."""
    model, groups, best = config.model, config.model.moe_router_num_groups, config.model.moe_router_group_topk
    if not _limits_groups(config) or groups is None or best is None or _groups_do_not_fit(config):
        return None
    members = (model.num_moe_experts or 0) // groups
    return members if model.moe_router_topk > best * members or model.moe_router_topk // best > members else None


def _ranks_of_uneven_expert(config: Config) -> int | None:
    """Return the ranks that an expert cannot be split evenly over."""
    ranks = config.parallel.expert_tensor_parallel_size or config.parallel.tensor_model_parallel_size
    return ranks if config.model.num_moe_experts is not None and config.expert_ffn_size % ranks else None


def _pattern_misses_layers(config: Config) -> bool:
    model, pattern = config.model, config.model.moe_layer_freq
    return model.num_moe_experts is not None and not isinstance(pattern, int) and len(pattern) != model.num_layers


def _largest_imbalance(config: Config) -> str | None:
    """Return the factor of the most rows that can reach a rank, where more are asked for."""
    model, ranks = config.model, config.parallel.expert_model_parallel_size
    if model.num_moe_experts is None:
        return None
    largest = max(1.0, min(float(ranks), model.num_moe_experts / model.moe_router_topk))
    return f"{largest:g}" if model.moe_imbalance_factor > largest else None


def _shared_width_is_uneven(config: Config) -> bool:
    model, tp = config.model, config.parallel.tensor_model_parallel_size
    width = model.moe_shared_expert_intermediate_size
    return model.num_moe_experts is not None and width is not None and width % tp != 0


MOE_RULES: tuple[Rule, ...] = (
    error(
        id="E1",
        keys="model.moe_expert_capacity_factor model.moe_router_load_balancing_type",
        applies=lambda c: (
            c.model.num_moe_experts is not None
            and c.model.moe_expert_capacity_factor is not None
            and c.model.moe_router_load_balancing_type == "sinkhorn"
        ),
        message="moe_expert_capacity_factor is set, and sinkhorn balances in another way",
        remedy="set moe_router_load_balancing_type to aux_loss or none, or remove the capacity",
        source=TRANSFORMER,
    ),
    needs("E2", "model.moe_pad_expert_input_to_capacity", "model.moe_expert_capacity_factor", TRANSFORMER),
    error(
        id="E3",
        keys="model.moe_layer_freq model.num_layers",
        applies=_pattern_misses_layers,
        message="moe_layer_freq does not have {c.model.num_layers} entries, one for each layer",
        remedy="give a number, or one entry for each layer",
        source="Megatron-Core models/gpt/gpt_layer_specs.py",
    ),
    error(
        id="E4",
        keys="parallel.expert_tensor_parallel_size model.moe_ffn_hidden_size",
        applies=_ranks_of_uneven_expert,
        message="an expert of width {c.expert_ffn_size} cannot be split evenly over {found} ranks",
        remedy="let expert_tensor_parallel_size divide moe_ffn_hidden_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    error(
        id="E5",
        keys="model.moe_shared_expert_intermediate_size parallel.tensor_model_parallel_size",
        applies=_shared_width_is_uneven,
        message="shared experts of width {c.model.moe_shared_expert_intermediate_size} cannot be split evenly "
        "over {c.parallel.tensor_model_parallel_size} ranks",
        remedy="let tensor_model_parallel_size divide moe_shared_expert_intermediate_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    error(
        id="E6",
        keys="model.moe_router_pre_softmax model.moe_router_topk",
        applies=lambda c: (
            c.model.num_moe_experts is not None
            and c.model.moe_router_topk == 1
            and c.model.moe_router_score_function == "softmax"
            and not c.model.moe_router_pre_softmax
            and c.model.moe_router_load_balancing_type != "sinkhorn"
        ),
        message="moe_router_topk is 1, and the softmax is taken over the chosen expert alone",
        remedy="set moe_router_pre_softmax to true",
        source=TRANSFORMER,
    ),
    conflict(
        "E9",
        "model.moe_router_enable_expert_bias",
        "model.moe_router_score_function=softmax",
        TRANSFORMER,
        remedy="set moe_router_score_function to sigmoid, or remove moe_router_enable_expert_bias",
    ),
    error(
        id="E10",
        keys="model.moe_router_group_topk model.moe_router_num_groups",
        applies=lambda c: _limits_groups(c) and c.model.moe_router_num_groups is None,
        message="moe_router_group_topk is set, and moe_router_num_groups is null",
        remedy="set moe_router_num_groups, or remove moe_router_group_topk",
        source=TRANSFORMER,
    ),
    error(
        id="E11",
        keys="model.moe_router_num_groups model.num_moe_experts model.moe_router_group_topk",
        applies=_groups_do_not_fit,
        message="{c.model.num_moe_experts} experts and a choice of {c.model.moe_router_group_topk} groups do not "
        "go with moe_router_num_groups {c.model.moe_router_num_groups}",
        remedy="let moe_router_num_groups divide num_moe_experts, and be at least moe_router_group_topk",
        source=TRANSFORMER,
    ),
    error(
        id="E12",
        keys="model.moe_router_topk model.moe_router_group_topk model.moe_router_num_groups",
        applies=_too_few_in_a_group,
        message="{c.model.moe_router_topk} experts are to come from {c.model.moe_router_group_topk} groups, and a "
        "group has {found}",
        remedy="raise moe_router_group_topk, or lower moe_router_num_groups or moe_router_topk",
        source="Megatron-Core transformer/moe/moe_utils.py, group_limited_topk",
    ),
    error(
        id="E13",
        keys="model.moe_aux_loss_coeff model.moe_router_load_balancing_type",
        applies=lambda c: _by_sinkhorn(c) and c.model.moe_aux_loss_coeff > 0,
        message="moe_aux_loss_coeff is set, and sinkhorn balances without a loss",
        remedy="set moe_aux_loss_coeff to 0, or moe_router_load_balancing_type to aux_loss",
        source=_ROUTER,
    ),
    error(
        id="E19",
        keys="model.moe_ffn_hidden_size model.num_moe_experts",
        applies=lambda c: (
            c.model.num_moe_experts is None
            and c.model.moe_ffn_hidden_size is not None
            and c.model.moe_layer_freq in (1, (1,) * c.model.num_layers)
        ),
        message="moe_ffn_hidden_size is set, and num_moe_experts is null",
        remedy="set num_moe_experts, or remove moe_ffn_hidden_size",
        source=TRANSFORMER,
    ),
    warning(
        id="E18",
        keys="model.moe_imbalance_factor parallel.expert_model_parallel_size",
        applies=_largest_imbalance,
        message="moe_imbalance_factor is {c.model.moe_imbalance_factor:g}, and counts as {found}: a rank gets no "
        "more than all rows, nor an expert a token twice",
        remedy="set a smaller moe_imbalance_factor, or a larger expert_model_parallel_size",
        source="oomscope docs/rules.md",
    ),
)
