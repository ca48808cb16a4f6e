"""Rules of the transformer, of its number formats and of products in fp8."""

from __future__ import annotations

from oomscope.config.rules.rule import ARGS, TRANSFORMER, Rule, error, warning
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
    error(
        id="M1",
        keys=("precision.fp16", "precision.bf16"),
        applies=lambda c: c.precision.fp16 and c.precision.bf16,
        message="bf16 and fp16 are both set (bf16 is the default)",
        remedy="set one of them to false",
        source=TRANSFORMER,
    ),
    error(
        id="M2",
        keys=("model.num_attention_heads", "model.hidden_size"),
        applies=lambda c: c.model.kv_channels is None and c.model.hidden_size % c.model.num_attention_heads,
        message=(
            "a hidden_size of {c.model.hidden_size} cannot be split evenly over {c.model.num_attention_heads}"
            " attention heads"
        ),
        remedy="let num_attention_heads divide hidden_size, or set kv_channels",
        source=ARGS,
    ),
    error(
        id="M3",
        keys=("model.kv_channels", "model.num_attention_heads"),
        applies=lambda c: c.model.position_embedding_type == "rope" and c.head_dim % 2,
        message="heads of width {c.head_dim} cannot be rotated in pairs",
        remedy="let kv_channels be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    error(
        id="M4",
        keys=("model.max_position_embeddings", "data.seq_length"),
        applies=_learned_positions_fall_short,
        message=(
            "a sequence of {c.data.seq_length} tokens is longer than the table of "
            "{c.model.max_position_embeddings} learned positions"
        ),
        remedy="raise max_position_embeddings, or use rope",
        source=ARGS,
    ),
    error(
        id="M5",
        keys=("model.attention_backend", "precision.bf16"),
        applies=lambda c: (
            c.model.attention_backend in ("flash", "fused") and not (c.precision.bf16 or c.precision.fp16)
        ),
        message="{c.model.attention_backend} attention has no kernel for fp32",
        remedy="set precision.bf16, or attention_backend to unfused",
        source=f"{_FLASH}, check_dtypes_low_precision",
    ),
    error(
        id="M6",
        keys=("model.kv_channels", "model.attention_backend", "model.hidden_size"),
        applies=lambda c: c.attention_backend == "flash" and c.head_dim > 256,
        message="flash attention has no kernel for heads of width {c.head_dim}",
        remedy="use more or narrower heads, or set attention_backend to unfused",
        source=f"{_FLASH}, check_head_dim_size_flash",
    ),
    error(
        id="M7",
        keys=("model.moe_router_topk", "model.num_moe_experts"),
        applies=lambda c: c.model.num_moe_experts is not None and c.model.moe_router_topk > c.model.num_moe_experts,
        message="moe_router_topk is {c.model.moe_router_topk}, and there are {c.model.num_moe_experts} experts",
        remedy="let moe_router_topk be at most num_moe_experts",
        source="Megatron-Core transformer/moe/moe_utils.py (torch.topk)",
    ),
    error(
        id="M10",
        keys=("precision.fp8_param", "precision.fp8"),
        applies=lambda c: c.precision.fp8_param and c.precision.fp8 is None,
        message="fp8_param is set without fp8",
        remedy="set fp8, or remove fp8_param",
        source=TRANSFORMER,
    ),
    error(
        id="A4",
        keys=("model.qk_pos_emb_head_dim",),
        applies=lambda c: c.model.multi_latent_attention and c.model.qk_pos_emb_head_dim % 2,
        message="rotary parts of width {c.model.qk_pos_emb_head_dim} cannot be rotated in pairs",
        remedy="let qk_pos_emb_head_dim be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    error(
        id="A5",
        keys=("model.num_query_groups", "model.multi_latent_attention"),
        applies=lambda c: c.model.multi_latent_attention and c.query_groups != c.model.num_attention_heads,
        message="num_query_groups is given, and every head of multi-latent attention has a key of its own",
        remedy="set num_query_groups to null",
        source="Megatron-LM training/theoretical_memory_usage.py",
    ),
    error(
        id="MTP1",
        keys=("model.mtp_num_layers", "model.position_embedding_type"),
        applies=lambda c: c.model.mtp_num_layers is not None and c.model.position_embedding_type == "learned_absolute",
        message="multi-token prediction does not work with learned positions",
        remedy="set position_embedding_type to rope or none, or mtp_num_layers to null",
        source=ARGS,
    ),
    error(
        id="MTP2",
        keys=("model.mtp_num_layers", "recompute.recompute_num_layers"),
        applies=lambda c: _recomputes(c, "uniform") and (c.recompute.recompute_num_layers or 1) != 1,
        message="uniform recomputation of several layers at once does not work with multi-token prediction",
        remedy="set recompute_num_layers to 1",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    warning(
        id="MTP3",
        keys=("model.mtp_num_layers", "recompute.recompute_method"),
        applies=lambda c: _recomputes(c, "block"),
        message="the layers of multi-token prediction keep everything, since recompute_method is block",
        remedy="set recompute_method to uniform to recompute them too",
        source=f"{_MTP}, _checkpointed_forward",
    ),
    error(
        id="MTP4",
        keys=("model.mtp_num_layers", "recompute.distribute_saved_activations"),
        applies=lambda c: _recomputes(c, "uniform") and c.recompute.distribute_saved_activations,
        message="distribute_saved_activations cuts the hidden state that multi-token prediction joins with the others",
        remedy="set distribute_saved_activations to false",
        source=f"{_MTP}, MultiTokenPredictionBlock.forward; tensor_parallel/random.py, CheckpointFunction",
    ),
    warning(
        id="Q1",
        keys=("precision.fp8", "model.transformer_impl"),
        applies=lambda c: c.precision.fp8 is not None and c.model.transformer_impl != "transformer_engine",
        message="fp8 is set, and does nothing in the layers of transformer_impl local",
        remedy="set transformer_impl to transformer_engine, or fp8 to null",
        source="Megatron-Core fp8_utils.py, get_fp8_context",
    ),
    error(
        id="Q2",
        keys=("precision.first_last_layers_bf16", "precision.fp8_recipe"),
        applies=lambda c: (
            c.precision.fp8 is not None and c.precision.first_last_layers_bf16 and c.precision.fp8_recipe == "delayed"
        ),
        message="delayed scaling does not leave the first and last layers in bf16",
        remedy="choose another fp8_recipe, or set first_last_layers_bf16 to false",
        source=TRANSFORMER,
    ),
    error(
        id="Q3",
        keys=("precision.num_layers_at_start_in_bf16", "precision.num_layers_at_end_in_bf16"),
        applies=_too_many_bf16_layers,
        message="{found}, more than the layers of a pipeline stage",
        remedy="lower it",
        source=TRANSFORMER,
    ),
    error(
        id="Q4",
        keys=("precision.fp8_param", "optimizer.use_distributed_optimizer"),
        applies=lambda c: c.precision.fp8_param and not c.optimizer.use_distributed_optimizer,
        message="fp8_param is set without the distributed optimizer",
        remedy="set use_distributed_optimizer, or fp8_param to false",
        source=ARGS,
    ),
    error(
        id="Q5",
        keys=("precision.fp8", "precision.fp8_recipe"),
        applies=_odd_widths,
        message="on a rank {found}, as fp8_recipe {c.precision.fp8_recipe} needs",
        remedy="change the width or the tensor parallelism",
        source=_UTILS,
    ),
    error(
        id="Q6",
        keys=("precision.fp8", "data.seq_length", "data.micro_batch_size"),
        applies=_odd_rows,
        message="a rank multiplies {found}, as fp8_recipe {c.precision.fp8_recipe} needs",
        remedy="change seq_length or micro_batch_size",
        source=_UTILS,
    ),
)
