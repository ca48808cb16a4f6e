"""Megatron Bridge's ConfigContainer: its YAML dump, overrides ``section.key=value``, lines ``cfg.section.key = value``.

Its model section is a Megatron-Core TransformerConfig (models/gpt_provider.py), so most names are those of oomscope;
the defaults are those of the dataclasses (training/config.py), not of Megatron-LM's launcher.
"""

from __future__ import annotations

from typing import Any

from oomscope.config.importers import megatron_arguments
from oomscope.config.importers.draft import Draft, keep_mask_on_host, note_kept_cache, note_ramp, switch_off_overlap
from oomscope.config.importers.rows import (
    Choice,
    Dialect,
    ForFinish,
    Row,
    To,
    Unmodelled,
    dtype,
    is_on,
    listed,
    negated,
    positive_or_none,
    same_names,
    whole,
)

_BF16 = {"precision.bf16": True, "precision.grad_reduce_in_fp32": True}
_FP16 = {"precision.fp16": True, "precision.bf16": False, "precision.grad_reduce_in_fp32": False}

_RECIPES: dict[str, dict[str, Any]] = {
    "bf16_mixed": _BF16,
    "fp16_mixed": _FP16,
    "bf16_with_fp8_delayed_scaling_mixed": {
        **_BF16,
        "precision.fp8": "hybrid",
        "precision.fp8_amax_history_len": 1024,
        "precision.fp8_param": True,
    },
    "bf16_with_mxfp8_mixed": {
        **_BF16,
        "precision.fp8": "e4m3",
        "precision.fp8_recipe": "mxfp8",
        "precision.fp8_param": True,
    },
    "bf16_with_fp8_current_scaling_mixed": {
        **_BF16,
        "precision.fp8": "hybrid",
        "precision.fp8_recipe": "tensorwise",
        "precision.first_last_layers_bf16": True,
        "precision.fp8_param": True,
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {
        **_BF16,
        "precision.fp8": "hybrid",
        "precision.fp8_recipe": "blockwise",
    },
}
"""Recipes by name (training/mixed_precision.py)."""

_FROM_MEGATRON = {
    f"model.{name}": row for name, row in megatron_arguments.TABLE.items() if isinstance(row, Unmodelled | Choice)
}

_OVERLAPS = {
    "tp_comm_overlap",
    "overlap_p2p_comm",
    "batch_p2p_comm",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_param_gather_with_optimizer_step",
    "defer_embedding_wgrad_compute",
}
"""Keys that the section of overlapping sets for other sections (training/comm_overlap.py)."""
_PACKED = Unmodelled("packed sequences are not implemented", (-1,))


def _size_or_name(value: Any) -> int | str:
    return value if isinstance(value, str) and value.isidentifier() else whole(value)


TABLE: dict[str, Row] = {
    **_FROM_MEGATRON,
    **same_names("optimizer", prefix="optimizer."),
    **same_names("model", "parallel", "recompute", "offload", "precision", "data", prefix="model."),
    **{
        f"model.{name}": megatron_arguments.TABLE[name]
        for name in (
            "position_embedding_type",
            "attention_backend",
            "moe_router_load_balancing_type",
            "moe_aux_loss_coeff",
        )
    },
    "model.activation_func": Choice(
        {name: {"model.activation_func": name} for name in ("gelu", "silu", "relu")},
        alike={"swish": ("silu", "two names of one function")},
    ),
    "model.mtp_num_layers": To("model.mtp_num_layers", positive_or_none),
    "model.num_moe_experts": To("model.num_moe_experts", positive_or_none),
    "model.moe_layer_recompute": ForFinish(is_on),
    "model.should_pad_vocab": ForFinish(is_on),
    "tokenizer.vocab_size": ForFinish(_size_or_name),
    "tokenizer.use_tokenizer_vocab_size": ForFinish(is_on),
    "dataset.seq_length": To("data.seq_length", whole),
    "dataset.sequence_length": To("data.seq_length", whole),
    "dataset.create_attention_mask": ForFinish(is_on),
    "dataset.skip_getting_attention_mask_from_dataset": To("data.create_attention_mask_in_dataloader", negated),
    "train.micro_batch_size": To("data.micro_batch_size", whole),
    "train.global_batch_size": To("data.global_batch_size", whole),
    "train.rampup_batch_size": ForFinish(listed),
    "train.empty_unused_memory_level": ForFinish(),
    "validation.eval_micro_batch_size": ForFinish(whole),
    "dataset.packed_sequence_specs.packed_sequence_size": _PACKED,
    "dataset.offline_packing_specs.packed_sequence_size": _PACKED,
    "dataset.enable_offline_packing": _PACKED,
    "ddp.fp8_param_gather": To("precision.fp8_param", is_on),
    "mixed_precision": Choice(_RECIPES),
    **same_names("precision", prefix="mixed_precision."),
    **{
        f"mixed_precision.{name}": _FROM_MEGATRON[f"model.{name}"]
        for name in ("fp4", "fp8_wgrad", "fp8_dot_product_attention", "fp8_multi_head_attention")
    },
    "mixed_precision.fp8_param_gather": To("precision.fp8_param", is_on),
    "ddp.grad_reduce_in_fp32": ForFinish(is_on),
    "ddp.use_distributed_optimizer": To("optimizer.use_distributed_optimizer", is_on),
    "ddp.overlap_grad_reduce": To("optimizer.overlap_grad_reduce", is_on),
    "ddp.overlap_param_gather": To("optimizer.overlap_param_gather", is_on),
    "ddp.data_parallel_sharding_strategy": To("parallel.data_parallel_sharding_strategy"),
    "ddp.use_megatron_fsdp": To("parallel.use_megatron_fsdp", is_on),
    "ddp.suggested_communication_unit_size": To("parallel.suggested_communication_unit_size", whole),
    "ddp.fsdp_double_buffer": To("parallel.fsdp_double_buffer", is_on),
    "ddp.megatron_fsdp_max_pool_double_buffer": To("parallel.fsdp_double_buffer", is_on),
    "ddp.megatron_fsdp_version": Unmodelled("the second version of Megatron-FSDP is not implemented", (1,)),
    **{
        f"ddp.megatron_fsdp_{what}_dtype": To(f"parallel.megatron_fsdp_{what}_dtype", dtype)
        for what in ("main_grads", "grad_comm")
    },
    "ddp.megatron_fsdp_main_params_dtype": _FROM_MEGATRON["model.megatron_fsdp_main_params_dtype"],
    "ddp.outer_dp_sharding_strategy": Unmodelled("sharding over two levels is not implemented", ("no_shard",)),
    "logger.log_params_norm": To("optimizer.log_params_norm", is_on),
    "ddp.nccl_ub": Unmodelled("buffers registered with NCCL are not implemented"),
    "ddp.num_distributed_optimizer_instances": To("optimizer.num_distributed_optimizer_instances", whole),
    "dist.use_torch_fsdp2": To("parallel.use_torch_fsdp2", is_on),
    "dist.use_megatron_fsdp": To("parallel.use_megatron_fsdp", is_on),
    "dist.use_tp_pp_dp_mapping": To("parallel.use_tp_pp_dp_mapping", is_on),
    **{f"comm_overlap.{name}": row for name, row in same_names("parallel", "optimizer").items() if name in _OVERLAPS},
    "comm_overlap.wgrad_deferral_limit": To("parallel.wgrad_deferral_limit", lambda value: max(whole(value), 0)),
    "comm_overlap.overlap_moe_expert_parallel_comm": _FROM_MEGATRON["model.overlap_moe_expert_parallel_comm"],
    "comm_overlap.delay_wgrad_compute": Unmodelled("weight gradients computed apart are not implemented"),
    "peft": Unmodelled("adapters are measured with a harness (docs/probe.md)"),
    "peft.dim": Unmodelled("adapters are measured with a harness (docs/probe.md)"),
    "data_parallel_size": To("parallel.data_parallel_size", whole),
    "world_size": ForFinish(whole),
}
"""``section.field`` to what it becomes."""

_NAMES = """
logger.* scheduler.* checkpoint.* rng.* dist.* profiling.* straggler.* nvrx_straggler.* ft.* validation.*
inprocess_restart.* tensor_inspect.* rerun_state_machine.* tokenizer.* dataset.* comm_overlap.* peft.*
optimizer_config_override_provider* mixed_precision.* train.* ddp.bucket_size ddp.pad_buckets_*
ddp.average_in_collective ddp.param_name_patterns_* ddp.keep_fp8_transpose_cache ddp.fsdp_* ddp.preserve_fp32_weights
model.autocast_dtype model.enable_autocast model.params_dtype model.pipeline_dtype model.hf_model_*
model.generation_config model.transformer_layer_spec model.init_model_* model.*_method* model.parallel_output
model.scatter_embedding_sequence_parallel model.seq_len_interpolation_factor model.softmax_* model.rope_*
model.layernorm_zero_centered_gamma model.fallback_to_eager_attn model.hetereogenous_dist_checkpoint
model.gradient_accumulation_steps model.barrier_with_L1_time model.batch_p2p_sync model.cp_comm_overlap
model.max_position_embeddings_* model.fp8_* model.fp4_* model.cuda_graph_use_single_mempool
model.cuda_graph_retain_backward_graph model.symmetric_ar_type model.linear_* model.first_pipeline_*
model.num_layers_at_* model.timers model.finalize_model_grads_func model.no_sync_func model.grad_sync_func
model.param_sync_func model.grad_scale_func model.expert_tensor_* model.moe_extended_tp model.moe_router_*
optimizer.*_fn optimizer.config_logger_dir optimizer.timers optimizer.params_dtype optimizer.bf16 optimizer.fp16
optimizer.barrier_with_L1_time optimizer.use_megatron_fsdp
"""

WITHOUT_MEMORY = " ".join([_NAMES, *(f"*.{name}" for name in megatron_arguments.WITHOUT_MEMORY.split())])


def finish(draft: Draft) -> None:
    """Fill in what a dump leaves to the run.

    Source: Megatron-Bridge training/config.py (ConfigContainer.validate) and training/mixed_precision.py.
    """
    note_ramp(draft)
    note_kept_cache(draft)
    megatron_arguments.refuse_larger_evaluation(draft, "validation.eval_micro_batch_size")
    switch_off_overlap(draft)
    for name in ("dataset.sequence_length", "dataset.seq_length"):
        length, modelled = draft.given.get(name), draft.given.get("model.seq_length")
        if None not in {length, modelled} and length != modelled:
            draft.refuse(name, length, f"model.seq_length is {modelled}, and Megatron Bridge refuses two lengths")
    given = draft.given
    if given.get(made := "dataset.create_attention_mask") is False:
        draft.set("data.create_attention_mask_in_dataloader", False, because="no mask is made", name=made)
    keep_mask_on_host(draft)
    draft.world_size = given.get("world_size") or draft.world_size
    megatron_arguments.take_moe_layer_recompute(draft, "model.moe_layer_recompute")
    if given.get("ddp.grad_reduce_in_fp32") is not None:
        draft.default(
            "precision.grad_reduce_in_fp32", given["ddp.grad_reduce_in_fp32"], because="ddp.grad_reduce_in_fp32"
        )
    if isinstance(size := given.get("tokenizer.vocab_size"), str):
        draft.assume(f"tokenizer.vocab_size is not read: {size} is a name of Python, whose value is not known here")
        del given["tokenizer.vocab_size"]
    if draft.is_whole or draft.on_preset:
        _fusions(draft)
    if draft.is_whole:
        _defaults(draft)
        _vocabulary(draft)


def _fusions(draft: Draft) -> None:
    """Fuse what is fused by default (models/gpt_provider.py, utils/fusions.py)."""
    if not (draft.value("parallel.use_megatron_fsdp") or draft.value("parallel.use_torch_fsdp2")):
        draft.default("precision.gradient_accumulation_fusion", True, because="default with Transformer Engine")
    draft.default("model.cross_entropy_loss_fusion", True, because="default of GPTModelProvider")


def _defaults(draft: Draft) -> None:
    """Set what else the dataclasses have by another default (models/transformer_config.py)."""
    draft.default("precision.bf16", False, because="default of TransformerConfig")
    if draft.value("precision.bf16") and not any(name.startswith("mixed_precision") for name in draft.given):
        draft.default("precision.grad_reduce_in_fp32", False, because="default of DistributedDataParallelConfig")
    if draft.value("parallel.expert_model_parallel_size", 1) > 1:
        draft.default("parallel.expert_tensor_parallel_size", 1, because="default with expert parallelism")
    if draft.value("model.position_embedding_type") == "rope" and not draft.is_set("model.apply_rope_fusion"):
        draft.set("model.apply_rope_fusion", False, because="default of TransformerConfig")
        draft.assume("apply_rope_fusion is not given: false, by default (the bridges of Llama and others set it)")
    if not draft.value("model.gated_linear_unit") or draft.is_set("model.bias_activation_fusion"):
        return
    if draft.value("model.num_moe_experts") is None:
        draft.set("model.bias_activation_fusion", False, because="default of TransformerConfig")
        draft.assume("bias_activation_fusion is not given: false, by default (the bridges of Llama and others set it)")
    else:
        draft.assume("bias_activation_fusion is true, though false by default: with experts only that is modelled")


def _vocabulary(draft: Draft) -> None:
    """Pad the tokenizer's vocabulary, not the model's (training/setup.py, _validate_and_set_vocab_size)."""
    size, is_given = draft.given.get("tokenizer.vocab_size"), draft.is_set("model.vocab_size")
    is_of_tokenizer = draft.given.get("tokenizer.use_tokenizer_vocab_size") or not is_given
    if is_of_tokenizer and size:
        draft.set("model.vocab_size", size, because="of the tokenizer", name="tokenizer.vocab_size")
    elif not is_given:
        draft.assume("the tokenizer's vocabulary size is not given: 50257 tokens assumed (override model.vocab_size)")
    elif not (is_of_tokenizer or draft.given.get("model.should_pad_vocab")):
        draft.set("model.make_vocab_size_divisible_by", 1, because="only the tokenizer's vocabulary is padded")


BRIDGE = Dialect("bridge", "Megatron Bridge configuration", TABLE, WITHOUT_MEMORY, finish)
