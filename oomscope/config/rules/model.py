"""Rules of the transformer itself, of its number formats and of its batch."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_MICROBATCHES = "Megatron-Core num_microbatches_calculator.py"
_FLASH = "PyTorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"


def _sequences_at_once(config: Config) -> int:
    return config.data.micro_batch_size * config.parallel.data_parallel_size


def _is_fp32(config: Config) -> bool:
    return not config.precision.bf16 and not config.precision.fp16


def _learned_positions_fall_short(config: Config) -> bool:
    rows = config.model.max_position_embeddings
    learned = config.model.position_embedding_type == "learned_absolute"
    return learned and rows is not None and rows < config.data.seq_length


def _batches_contradict(config: Config) -> bool:
    data = config.data
    if data.num_microbatches is None or data.global_batch_size is None:
        return False
    return data.global_batch_size != data.num_microbatches * _sequences_at_once(config)


MODEL_RULES: tuple[Rule, ...] = (
    Rule(
        id="M1",
        keys=("precision.fp16", "precision.bf16"),
        applies=lambda config: config.precision.fp16 and config.precision.bf16,
        summary="At most one of bf16 and fp16 is set.",
        message="bf16 and fp16 are both set (bf16 is the default)",
        remedy="set one of them to false",
        source=_TRANSFORMER,
    ),
    Rule(
        id="M2",
        keys=("model.num_attention_heads", "model.hidden_size"),
        applies=lambda config: (
            config.model.kv_channels is None and config.model.hidden_size % config.model.num_attention_heads != 0
        ),
        summary="hidden_size is a multiple of num_attention_heads, unless kv_channels is given.",
        message=lambda config: (
            f"a hidden_size of {config.model.hidden_size} cannot be split evenly over "
            f"{config.model.num_attention_heads} attention heads"
        ),
        remedy="let num_attention_heads divide hidden_size, or set kv_channels",
        source=_ARGS,
    ),
    Rule(
        id="M3",
        keys=("model.kv_channels", "model.num_attention_heads"),
        applies=lambda config: config.model.position_embedding_type == "rope" and config.head_dim % 2 != 0,
        summary="Rotary positions need heads of even width.",
        message=lambda config: f"heads of width {config.head_dim} cannot be rotated in pairs",
        remedy="let kv_channels be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    Rule(
        id="M4",
        keys=("model.max_position_embeddings", "data.seq_length"),
        applies=_learned_positions_fall_short,
        summary="Learned positions cover seq_length.",
        message=lambda config: (
            f"a sequence of {config.data.seq_length} tokens is longer than the table of "
            f"{config.model.max_position_embeddings} learned positions"
        ),
        remedy="raise max_position_embeddings, or use rope",
        source=_ARGS,
    ),
    Rule(
        id="M5",
        keys=("model.attention_backend", "precision.bf16"),
        applies=lambda config: config.model.attention_backend in ("flash", "fused") and _is_fp32(config),
        summary="Flash and fused attention need bf16 or fp16.",
        message=lambda config: f"{config.model.attention_backend} attention has no kernel for fp32",
        remedy="set precision.bf16, or attention_backend to unfused",
        source=f"{_FLASH}, check_dtypes_low_precision",
    ),
    Rule(
        id="M6",
        keys=("model.kv_channels", "model.attention_backend", "model.hidden_size"),
        applies=lambda config: config.attention_backend == "flash" and config.head_dim > 256,
        summary="Flash attention takes heads of width up to 256.",
        message=lambda config: f"flash attention has no kernel for heads of width {config.head_dim}",
        remedy="use more or narrower heads, or set attention_backend to unfused",
        source=f"{_FLASH}, check_head_dim_size_flash",
    ),
    Rule(
        id="M7",
        keys=("model.moe_router_topk", "model.num_moe_experts"),
        applies=lambda config: (
            config.model.num_moe_experts is not None and config.model.moe_router_topk > config.model.num_moe_experts
        ),
        summary="A token is sent to at most num_moe_experts experts.",
        message=lambda config: (
            f"moe_router_topk is {config.model.moe_router_topk}, and there are {config.model.num_moe_experts} experts"
        ),
        remedy="let moe_router_topk be at most num_moe_experts",
        source="Megatron-Core transformer/moe/moe_utils.py (torch.topk)",
    ),
    Rule(
        id="M8",
        severity="warning",
        keys=("model.moe_ffn_hidden_size",),
        applies=lambda config: config.model.num_moe_experts is None and config.model.moe_ffn_hidden_size is not None,
        summary="moe_ffn_hidden_size acts on MoE layers alone.",
        message="moe_ffn_hidden_size is ignored, since num_moe_experts is null",
        remedy="set num_moe_experts, or remove moe_ffn_hidden_size",
        source=_TRANSFORMER,
    ),
    Rule(
        id="M9",
        severity="warning",
        keys=("precision.grad_reduce_in_fp32",),
        applies=lambda config: _is_fp32(config) and not config.precision.grad_reduce_in_fp32,
        summary="Gradients of an fp32 model are fp32.",
        message="grad_reduce_in_fp32 is ignored, since the parameters are fp32",
        remedy="remove grad_reduce_in_fp32",
        source="Megatron-Core distributed/param_and_grad_buffer.py, group_params_for_buffers",
    ),
    Rule(
        id="M10",
        keys=("precision.fp8_param", "precision.fp8"),
        applies=lambda config: config.precision.fp8_param and config.precision.fp8 is None,
        summary="Parameters in fp8 need fp8.",
        message="fp8_param is set without fp8",
        remedy="set fp8, or remove fp8_param",
        source=_TRANSFORMER,
    ),
    Rule(
        id="M11",
        keys=("precision.fp4", "precision.fp8"),
        applies=lambda config: config.precision.fp4 is not None and config.precision.fp8 is not None,
        summary="At most one of fp8 and fp4 is set.",
        message="fp8 and fp4 are both set",
        remedy="remove one of them",
        source=_ARGS,
    ),
    Rule(
        id="M12",
        keys=("model.mtp_num_layers", "model.enable_mhc_connections"),
        applies=lambda config: config.model.enable_mhc_connections and config.model.mtp_num_layers is not None,
        summary="Hyper-connections and multi-token prediction exclude each other.",
        message="enable_mhc_connections does not work with multi-token prediction",
        remedy="set mtp_num_layers to null",
        source=_TRANSFORMER,
    ),
    Rule(
        id="M13",
        severity="warning",
        keys=("model.cross_entropy_fusion_impl", "model.cross_entropy_loss_fusion"),
        applies=lambda config: (
            config.model.cross_entropy_loss_fusion and config.model.cross_entropy_fusion_impl == "te"
        ),
        summary="Megatron-LM's launcher refuses Transformer Engine's cross entropy, which Megatron-Core takes.",
        message="Megatron-LM's launcher refuses Transformer Engine's cross entropy, which is known to be unstable",
        remedy="set cross_entropy_fusion_impl to native where Megatron-LM is the launcher",
        source=_ARGS,
    ),
)

BATCH_RULES: tuple[Rule, ...] = (
    Rule(
        id="B1",
        keys=("data.global_batch_size", "data.micro_batch_size", "parallel.data_parallel_size"),
        applies=lambda config: (
            config.data.global_batch_size is not None
            and config.data.global_batch_size % _sequences_at_once(config) != 0
        ),
        summary="global_batch_size is a multiple of micro_batch_size * data_parallel_size.",
        message=lambda config: (
            f"a global batch of {config.data.global_batch_size} cannot be split evenly into microbatches of "
            f"{config.data.micro_batch_size} on {config.parallel.data_parallel_size} replicas"
        ),
        remedy="let micro_batch_size * data_parallel_size divide global_batch_size",
        source=_MICROBATCHES,
    ),
    Rule(
        id="B2",
        keys=("data.global_batch_size", "data.num_microbatches"),
        applies=_batches_contradict,
        summary="num_microbatches and global_batch_size do not contradict each other.",
        message=lambda config: (
            f"a global batch of {config.data.global_batch_size} is not {config.data.num_microbatches} microbatches of "
            f"{config.data.micro_batch_size} on {config.parallel.data_parallel_size} replicas"
        ),
        remedy="give one of them, and null for the other",
        source=_MICROBATCHES,
    ),
)
