"""Megatron-LM's command-line arguments (training/arguments.py), with the defaults and derivations of its launcher.

The launcher's defaults differ from those of the dataclasses in Megatron-Core: fp32 unless told, fused gradient
accumulation, an optimizer that is offloaded whole once it is offloaded at all.
"""

from __future__ import annotations

import re
from typing import Any

from oomscope.config.importers.draft import Draft, note_kept_cache, note_ramp
from oomscope.config.importers.rows import (
    Choice,
    Dialect,
    ForFinish,
    NotModelledError,
    Row,
    Switch,
    To,
    Unmodelled,
    alone,
    dtype,
    is_on,
    listed,
    negated,
    number_as_float,
    positive_or_none,
    same_names,
    whole,
    whole_numbers,
)

_LAUNCHER = "default of Megatron-LM's launcher"
_OTHER_ARCHITECTURE = "another architecture"
_OTHER_ACTIVATION = "its activation saves other tensors"
_OTHER_MIXER = "experimental attention variants and hyper-connections are not implemented"
_OTHER_TENSORS = "fused operations and paged stashing save other tensors"
_OVERLAPPED_EXPERTS = "overlapping the experts' communication keeps two microbatches at once"
_GRAPHS = (
    "what CUDA graphs hold can only be measured: a constant for device.non_torch_bytes "
    "(a few GiB, more than 10 GiB with pipelines)"
)
_WIDE_WGRAD = "weight gradients in 16 bits beside fp8 are not implemented"
_FP8_ATTENTION = "attention in fp8 keeps other tensors"
_FP4 = "matrix products in fp4, with their copies of the weights, are not implemented"


def _of_one_loss(value: Any) -> float:
    coefficient = alone(value)
    if isinstance(coefficient, list | tuple) and len(coefficient) > 1:
        raise NotModelledError("several balancing losses are not modelled")
    return number_as_float(coefficient)


TABLE: dict[str, Row] = {
    **same_names("model", "parallel", "recompute", "offload", "optimizer", "precision", "data"),
    "num_query_groups": ForFinish(whole),
    "group_query_attention": ForFinish(is_on),
    "padded_vocab_size": ForFinish(whole),
    "pad_vocab_size": ForFinish(is_on),
    "no_pad_vocab_size": ForFinish(is_on),
    "tokenizer_type": ForFinish(),
    "position_embedding_type": Choice(
        {
            **{name: {"model.position_embedding_type": name} for name in ("learned_absolute", "rope", "none")},
            "yarn": {"model.position_embedding_type": "rope", "model.apply_rope_fusion": False},
        },
        alike={"mrope": ("yarn", "cosines and sines of one sample, not of each")},
    ),
    "no_rope_fusion": To("model.apply_rope_fusion", negated),
    "use_rotary_position_embeddings": Switch({"model.position_embedding_type": "rope"}),
    "no_position_embedding": ForFinish(),
    "norm_epsilon": To("model.layernorm_epsilon", number_as_float),
    "swiglu": Switch({"model.gated_linear_unit": True, "model.activation_func": "silu"}),
    "squared_relu": Switch({"model.activation_func": "squared_relu"}),
    "quick_geglu": Unmodelled(_OTHER_ACTIVATION),
    "openai_gelu": Unmodelled(_OTHER_ACTIVATION),
    "disable_bias_linear": To("model.add_bias_linear", negated),
    "untie_embeddings_and_output_weights": To("model.share_embeddings_and_output_weights", negated),
    "attention_backend": Choice(
        {name: {"model.attention_backend": name} for name in ("auto", "flash", "fused", "unfused")},
        alike={
            "local": ("unfused", "the local layers have no other"),
        },
    ),
    "no_masked_softmax_fusion": To("model.masked_softmax_fusion", negated),
    "apply_query_key_layer_scaling": ForFinish(is_on),
    **{f"{no}bias_{name}_fusion": ForFinish(is_on) for no in ("", "no_") for name in ("gelu", "swiglu")},
    "mtp_num_layers": To("model.mtp_num_layers", positive_or_none),
    "mtp_detach_heads": Unmodelled(
        "heads that send no gradient to the model, clipped apart from it, are not implemented"
    ),
    "mtp_hsm": Unmodelled("inputs of a depth drawn from the states of several are not implemented"),
    "num_experts": To("model.num_moe_experts", positive_or_none),
    "moe_layer_freq": ForFinish(),
    "moe_expert_capacity_factor": To("model.moe_expert_capacity_factor", positive_or_none),
    "moe_z_loss_coeff": To("model.moe_z_loss_coeff", positive_or_none),
    "moe_router_score_function": Choice(
        {name: {"model.moe_router_score_function": name} for name in ("softmax", "sigmoid")}
    ),
    "moe_router_load_balancing_type": Choice(
        {
            name: {"model.moe_router_load_balancing_type": name}
            for name in ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none")
        }
    ),
    "moe_aux_loss_coeff": To("model.moe_aux_loss_coeff", _of_one_loss),
    "moe_router_fusion": Choice({"false": {}}, alike={"true": ("false", "a fused router keeps less, of its own size")}),
    "moe_apply_probs_on_input": Unmodelled("experts that keep a weighted copy of their input are not implemented"),
    "moe_dispatch_fwd_dtype": Unmodelled("dispatched rows of another type are not implemented", ("bf16",)),
    "moe_combine_bwd_dtype": Unmodelled("dispatched rows of another type are not implemented", ("bf16",)),
    "moe_latent_size": Unmodelled("experts on a narrower stream are not implemented"),
    "heterogeneous_layers_config_path": Unmodelled("layers of different shapes are not implemented"),
    "heterogeneous_layers_config_encoded_json": Unmodelled("layers of different shapes are not implemented"),
    "linear_attention_freq": Unmodelled("linear attention is not implemented"),
    "attention_output_gate": Unmodelled("a gate over the attention's output is not implemented"),
    "moe_shared_expert_gate": Unmodelled("a gate over shared experts is not implemented"),
    "hybrid_layer_pattern": Unmodelled(_OTHER_ARCHITECTURE),
    "hybrid_override_pattern": Unmodelled(_OTHER_ARCHITECTURE),
    "spec": Unmodelled("layers of your own are measured with a harness (docs/probe.md)"),
    "softmax_type": Unmodelled("a softmax with an offset is not implemented", ("vanilla",)),
    "qk_clip": Unmodelled("clipped attention logits are not implemented"),
    "mlp_chunks_for_training": Unmodelled("an MLP over parts of the sequence is not implemented", (1,)),
    "window_size": Unmodelled("sliding-window attention is not implemented"),
    "encoder_num_layers": To("model.num_layers", whole),
    "decoder_num_layers": Unmodelled(_OTHER_ARCHITECTURE),
    "retro_project_dir": Unmodelled(_OTHER_ARCHITECTURE),
    "use_legacy_models": Unmodelled("the layers before Megatron-Core are not implemented"),
    "num_virtual_stages_per_pipeline_rank": To("parallel.virtual_pipeline_model_parallel_size", whole),
    "decoder_first_pipeline_num_layers": To("parallel.num_layers_in_first_pipeline_stage", whole),
    "decoder_last_pipeline_num_layers": To("parallel.num_layers_in_last_pipeline_stage", whole),
    "microbatch_group_size_per_virtual_pipeline_stage": To("parallel.microbatch_group_size_per_vp_stage", whole),
    "no_overlap_p2p_communication": To("parallel.overlap_p2p_comm", negated),
    "hierarchical_context_parallel_sizes": To("parallel.hierarchical_context_parallel_sizes", whole_numbers),
    "world_size": ForFinish(whole),
    "torch_fsdp2_no_reshard_after_forward": To("parallel.torch_fsdp2_reshard_after_forward", negated),
    "use_custom_fsdp": To("parallel.use_megatron_fsdp", is_on),
    "megatron_fsdp_version": Unmodelled("the second version of Megatron-FSDP is not implemented", (1,)),
    "megatron_fsdp_max_pool_double_buffer": To("parallel.fsdp_double_buffer", is_on),
    "megatron_fsdp_enable_fine_grained_param_gather": Unmodelled(
        "parameters gathered module by module are not implemented"
    ),
    "recompute_activations": ForFinish(is_on),
    "checkpoint_activations": Unmodelled("the launcher refuses it: write --recompute-granularity"),
    "enable_cuda_graph": Unmodelled(_GRAPHS),
    "external_cuda_graph": Unmodelled(_GRAPHS),
    "cuda_graph_impl": Unmodelled(_GRAPHS, ("none",)),
    "cuda_graph_modules": Unmodelled(_GRAPHS, ([],), convert=listed),
    "cuda_graph_scope": Unmodelled(_GRAPHS, ([], ["full"]), convert=listed),
    "delay_offload_until_cuda_graph": Unmodelled(_GRAPHS, convert=is_on),
    "delta_offload_bytes_across_pp_ranks": Unmodelled(
        "another share for each pipeline rank is not implemented", beside="offload.fine_grained_activation_offloading"
    ),
    "moe_layer_recompute": ForFinish(is_on),
    "mhc_recompute_layer_num": Unmodelled(_OTHER_MIXER),
    "enable_mhc_connections": Unmodelled(_OTHER_MIXER, convert=is_on),
    "experimental_attention_variant": Unmodelled(_OTHER_MIXER),
    "num_microbatches_with_partial_activation_checkpoints": Unmodelled(
        "the schedule hands it to the forward step, which takes it for return_schedule_plan; "
        "choose recompute_method block with fewer layers"
    ),
    "use_transformer_engine_op_fuser": Unmodelled(_OTHER_TENSORS, convert=is_on),
    "moe_paged_stash": Unmodelled(_OTHER_TENSORS, convert=is_on),
    "moe_shared_expert_overlap": Unmodelled(_OVERLAPPED_EXPERTS, convert=is_on),
    "overlap_moe_expert_parallel_comm": Unmodelled(_OVERLAPPED_EXPERTS, convert=is_on),
    "moe_input_jitter_eps": Unmodelled(
        "noise on the router's input is not implemented", beside="model.num_moe_experts"
    ),
    "megatron_fsdp_main_params_dtype": Unmodelled(
        "main weights of Megatron-FSDP are in fp32", ("fp32",), beside="parallel.use_megatron_fsdp", convert=dtype
    ),
    "muon_scalar_optimizer": Unmodelled("another optimizer for vectors than Adam is not implemented", ("adam",)),
    "muon_no_split_qkv": To("optimizer.muon_split_qkv", negated),
    "params_dtype": ForFinish(),
    "accumulate_allreduce_grads_in_fp32": ForFinish(is_on),
    "grad_reduce_in_bf16": ForFinish(is_on),
    "fp8_format": To("precision.fp8"),
    "fp8_param_gather": To("precision.fp8_param", is_on),
    "fp8_wgrad": Unmodelled(_WIDE_WGRAD, beside="precision.fp8", convert=negated),
    "no_fp8_wgrad": Unmodelled(_WIDE_WGRAD, beside="precision.fp8", convert=is_on),
    "fp8_dot_product_attention": Unmodelled(_FP8_ATTENTION, convert=is_on),
    "fp8_multi_head_attention": Unmodelled(_FP8_ATTENTION, convert=is_on),
    "activation_func_fp8_input_store": Unmodelled("a non-linearity that keeps its input in fp8 is not implemented"),
    "moe_router_padding_for_fp8": Unmodelled("rows that a router pads for fp8 are not implemented"),
    "moe_router_padding_for_quantization": Unmodelled("rows that a router pads for fp8 are not implemented"),
    "fp8_output_proj": Unmodelled("an output layer in fp8 is not implemented"),
    "reuse_grad_buf_for_mxfp8_param_ag": ForFinish(is_on),
    "fp4": Unmodelled(_FP4),
    "fp4_format": Unmodelled(_FP4),
    "no_gradient_accumulation_fusion": To("precision.gradient_accumulation_fusion", negated),
    "fp32_residual_connection": Unmodelled("a residual stream in fp32 is not implemented"),
    "output_logit_dtype": Unmodelled("logits of another type are not implemented"),
    "fp16_lm_cross_entropy": Unmodelled("a loss in fp16 is not implemented"),
    "ddp_num_buckets": Unmodelled("the number of gradient buckets is not implemented"),
    **{
        name: Unmodelled("weights gathered on demand are not implemented", (1,))
        for name in (
            "gtp_weight_remat_size",
            "expert_gtp_weight_remat_size",
            "tensor_parallel_num_weight_shards",
            "expert_tensor_parallel_num_weight_shards",
        )
    },
    "nccl_ub": Unmodelled("buffers registered with NCCL are not implemented"),
    "use_nccl_ub": Unmodelled("buffers registered with NCCL are not implemented"),
    "outer_dp_sharding_strategy": Unmodelled("sharding over two levels is not implemented", ("no_shard",)),
    "encoder_seq_length": To("data.seq_length", whole),
    "rampup_batch_size": ForFinish(listed),
    "step_batch_size_schedule": Unmodelled("a batch that grows is not implemented: give --global-batch-size"),
    "no_create_attention_mask_in_dataloader": To("data.create_attention_mask_in_dataloader", negated),
    "dataloader_inter_document_masking": Switch({"data.create_attention_mask_in_dataloader": False}),
    "empty_unused_memory_level": ForFinish(),
    "eval_micro_batch_size": ForFinish(whole),
    "use_checkpoint_args": Choice({"false": {}}, alike={"true": ("false", "the checkpoint is not read")}),
    "seed": To("probe.seed", whole),
    "freeze_all_layers": Unmodelled("frozen layers are not implemented"),
    "sft": Unmodelled("packed sequences are not implemented"),
    "export_kd_teacher_load": Unmodelled("a teacher beside the model is not implemented"),
    "logits_load_dir": Unmodelled("a teacher's logits are not implemented"),
    "perform_rl_step": Unmodelled("reinforcement learning, with its inference, is not implemented"),
}
"""Name to what it becomes (Megatron-LM training/arguments.py, and the dataclasses behind it)."""

WITHOUT_MEMORY = """
save save_* load load_* no_save_* no_load_* ckpt_* dist_ckpt_* use_dist_ckpt async_* non_persistent_* finetune
pretrained_checkpoint exit_* auto_detect_ckpt_format use_persistent_ckpt_worker use_checkpoint_* use_mp_args_* verify_*
override_* strict_* most_recent_k log_* timing_* tensorboard_* wandb_* one_logger_* no_one_logger enable_one_logger
app_tag_* logging_level otel_* memory_snapshot_path record_memory_history profile profile_* use_pytorch_profiler
pytorch_profiler_* nvtx_ranges lr_* min_lr warmup decoupled_lr decoupled_min_lr start_weight_decay end_weight_decay
weight_decay_incr_style apply_wd_* no_weight_decay_cond_type muon_scale_mode muon_coefficient_type muon_use_syrk lion_*
train_iters train_samples eval_* skip_train test_mode full_validation phase_transition_iterations data_path
data_args_path data_cache_path train_data_path valid_data_path test_data_path per_split_data_args_path split mock_data
no_mmap_bin_files num_workers num_dataset_builder_threads dataloader_type dataloader_fast_cache_load reset_position_ids
reset_attention_mask eod_mask_loss data_sharding mid_level_dataset_surplus vocab_file merge_file tokenizer_* tiktoken_*
vocab_extra_ids legacy_tokenizer mmap_bin_files trust_remote_code allow_ambiguous_pad_tokens retriever_* fim_*
distributed_backend distributed_timeout_* local_rank rank lazy_mpu_init use_cpu_initialization init_method_*
perform_initialization init_model_with_meta_device high_priority_stream_groups nccl_communicator_config_path
sharp_enabled_group overlap_p2p_comm_warmup_flush align_* no_align_* use_gloo_process_groups disable_gloo_process_groups
enable_gloo_process_groups tp_comm_* disable_tp_comm_* ddp_bucket_size ddp_average_in_collective ddp_pad_buckets_*
no_gradient_reduce_div_fusion gradient_reduce_div_fusion use_ring_exchange_p2p te_rng_tracker deterministic_mode
use_mcore_models enable_experimental disable_mcore_* test_type no_bias_dropout_fusion bias_dropout_fusion
rope_type no_persist_layer_norm persist_layer_norm apply_layernorm_1p memory_efficient_layer_norm
rotary_percent rotary_interleaved rotary_scaling_factor rotary_seq_len_interpolation_factor use_rope_scaling
rope_scaling_factor mscale mscale_all_dim beta_fast beta_slow yarn_* bias_dropout_add_fusion onnx_safe check_for_*
no_check_for_* rerun_mode error_injection_* result_rejected_tracker_filename spiky_loss_factor fp8_interval
fp8_margin fp8_amax_compute_algo cuda_graph_warmup_steps cpu_offloading_double_buffering
cpu_offloading_retain_pinned_cpu_buffers fine_grained_offloading_max_inflight_offloads
use_torch_optimizer_for_cpu_offload
tp_only_amax_red moe_per_layer_logging moe_router_force_load_balancing moe_use_upcycling moe_use_legacy_grouped_gemm
manual_gc* adlr_* straggler_* enable_ft_package calc_ft_timeouts ft_* inprocess_* use_mup mup_* linear_conv_*
linear_key_* linear_value_* linear_num_* decrease_batch_size_if_needed iterations_to_skip use_flash_attn
use_flash_attn_3 data_parallel_random_init calculate_per_token_loss pin_cpu_* no_pin_cpu_* use_straggler_detector
disable_straggler_on_startup run_workload_inspector_server enable_msc disable_msc consumed_*
transformer_pipeline_model_parallel_size num_channels no_use_tokenizer_* no_ckpt_* check_weight_hash_* TEST_TYPE
LAUNCHER METRICS MODE BEFORE_SCRIPT AFTER_SCRIPT TEST_EVALUATION export_* moe_routing_trace_* add_position_embedding
batch_invariant_backend bert_* biencoder_* block_data_path classes_fraction clone_scatter_output_in_embedding
data_per_class_fraction dino_* dsa_* embedding_path evidence_data_path flight_recorder_* fp4_recipe gdp_* grpo_*
head_lr_mult ict_* img_* indexer_* inference_* iter_per_epoch kitchen_attention_backend logits_load_* logits_save_*
mamba_* mask_* max_tokens_to_oom mhc_* mlp_chunks_for_prefill moe_deepep_* moe_flex_dispatcher_* moe_hybridep_*
moe_paged_stash_* moe_upcycling_granularity null_tokenizer_* num_classes offset_sampling_* patch_dim qk_clip_*
query_in_block_prob refit_method relative_attention_* replication_* rl_* sample_rate sft_tokenizer_* short_seq_prob
swin_* titles_data_path use_layer_wise_param_layout use_mamba_mem_eff_path use_tokenizer_model_from_checkpoint_args
vision_*
"""

_LAYERS, _TIMES = re.compile(r"\[([01](?:,[01])*),?\]"), re.compile(r"\*(\d{1,9})")
"""Parts of a pattern of layers: ``[0,1]`` and ``*3``."""
_MOST_LAYERS, _MOST_BRACKETS = 10_000, 64
"""Most layers and brackets of a pattern; a longer text is none."""

_TOKENIZERS = {"GPT2BPETokenizer": 50257}
"""Tokenizers whose vocabulary is known by their name (openai-community/gpt2 config.json)."""


def finish(draft: Draft) -> None:
    """Derive what the launcher derives, and fill in its defaults.

    Source: Megatron-LM training/arguments.py, validate_args and the parsers.
    """
    draft.world_size = draft.given.get("world_size") or draft.world_size
    _shape(draft)
    _latents(draft)
    _chunks(draft)
    _attention(draft)
    _fusions(draft)
    _sequence_parallel(draft)
    note_kept_cache(draft)
    _offloading_and_optimizer(draft)
    if draft.given.get("recompute_activations"):
        because = "recompute_activations counts, not recompute_granularity"
        draft.set("recompute.recompute_granularity", "selective", because=because, name="recompute_activations")
    take_moe_layer_recompute(draft, "moe_layer_recompute")
    note_ramp(draft)
    refuse_larger_evaluation(draft, "eval_micro_batch_size")
    _megatron_fsdp(draft)
    if draft.value("model.cross_entropy_loss_fusion") and draft.value("model.cross_entropy_fusion_impl") == "te":
        draft.assume("cross_entropy_fusion_impl te is taken, which the launcher refuses since Megatron-Core 0.18.2")
    if draft.is_whole:
        _vocabulary(draft)
        _formats(draft)


def _shape(draft: Draft) -> None:
    if draft.is_whole and draft.given.get("group_query_attention"):
        groups = draft.given.get("num_query_groups")
        draft.set("model.num_query_groups", groups or 1, because="group_query_attention", name="num_query_groups")
    elif draft.given.get("num_query_groups") not in (None, 1):
        draft.assume("num_query_groups is ignored, as the launcher does without group_query_attention")
    hidden = draft.value("model.hidden_size")
    gated = draft.value("model.gated_linear_unit", False)
    if gated and hidden and not draft.is_set("model.ffn_hidden_size"):
        width = int((4 * hidden * 2 / 3) / 64) * 64
        draft.set("model.ffn_hidden_size", width, because="two thirds of 4 * hidden_size, in multiples of 64")
    frequency = draft.given.get("moe_layer_freq")
    if isinstance(frequency, str):
        frequency = _pattern(frequency)
    if frequency is not None:
        draft.set("model.moe_layer_freq", frequency, because="its pattern", name="moe_layer_freq")
    if draft.value("model.add_bias_linear", True) and draft.is_whole:
        draft.default("model.add_qkv_bias", True, because="kept equal to add_bias_linear by the launcher")


def _pattern(text: str) -> list[int] | str:
    """Return ``([0]*1+[1]*2)*3`` as a list; what is no such expression stays as it is, for the schema to refuse."""
    layers, rest = _sum_of_layers(text.replace(" ", "")) if text.count("(") <= _MOST_BRACKETS else ([], text)
    return text if rest or not layers else layers


def _sum_of_layers(text: str) -> tuple[list[int], str]:
    """Return the layers of the leading sum in ``text``, and what follows it; none where there is none, or too many."""
    layers: list[int] = []
    while True:
        if text.startswith("("):
            term, text = _sum_of_layers(text[1:])
            closed = text.startswith(")")
            term, text = (term, text[1:]) if closed else ([], text)
        else:
            match = _LAYERS.match(text)
            term, text = ([int(bit) for bit in match[1].split(",")], text[match.end() :]) if match else ([], text)
        if times := _TIMES.match(text):
            term, text = term * min(int(times[1]), _MOST_LAYERS // max(len(term), 1) + 1), text[times.end() :]
        layers += term
        if not term or len(layers) > _MOST_LAYERS:
            return [], text
        if not text.startswith("+"):
            return layers, text
        text = text[1:]


def _latents(draft: Draft) -> None:
    if draft.value("model.multi_latent_attention"):
        draft.default("model.q_lora_rank", None, because=f"{_LAUNCHER}; 512 in the dataclass")
        draft.default("model.kv_lora_rank", 32, because=f"{_LAUNCHER}; 512 in the dataclass")


def _chunks(draft: Draft) -> None:
    """Use only the number of chunks; the launcher derives it from the other option and logs both."""
    if draft.is_set("parallel.virtual_pipeline_model_parallel_size"):
        draft.settings.pop("parallel.num_layers_per_virtual_pipeline_stage", None)
    elif not draft.is_set("parallel.num_layers_per_virtual_pipeline_stage"):
        draft.drop("parallel.overlap_p2p_comm", False)


def refuse_larger_evaluation(draft: Draft, name: str) -> None:
    """Refuse an evaluation, which is not probed, with larger microbatches than those of training."""
    size = draft.given.get(name)
    if size is not None and size > draft.value("data.micro_batch_size", size):
        draft.refuse(name, size, "an evaluation is not probed, and its microbatches are larger than those of training")


def _attention(draft: Draft) -> None:
    off = {name for name in ("FLASH", "FUSED") if str(draft.given.get(f"ENV:NVTE_{name}_ATTN", "1")) == "0"}
    if not off or draft.value("model.attention_backend", "auto") != "auto":
        return
    if off == {"FLASH", "FUSED"}:
        draft.set("model.attention_backend", "unfused", because="both fused ones are off", name="ENV:NVTE_FLASH_ATTN")
    elif draft.value("model.transformer_impl", "transformer_engine") == "transformer_engine":
        left = "fused" if off == {"FLASH"} else "flash"
        draft.set("model.attention_backend", left, because="the other is off", name=f"ENV:NVTE_{off.pop()}_ATTN")


def _fusions(draft: Draft) -> None:
    if draft.value("model.gated_linear_unit"):
        kind = "swiglu" if draft.value("model.activation_func") == "silu" else "gelu"
        for name, off in ((f"no_bias_{kind}_fusion", True), (f"bias_{kind}_fusion", False)):
            if draft.given.get(name) is off:
                draft.set("model.bias_activation_fusion", False, because="told", name=name)
    if draft.given.get("apply_query_key_layer_scaling"):
        because = "apply_query_key_layer_scaling needs it"
        draft.set("model.attention_softmax_in_fp32", True, because=because, name="apply_query_key_layer_scaling")
    if draft.value("model.transformer_impl") == "local":
        draft.default("model.attention_softmax_in_fp32", False, because=_LAUNCHER)


def _sequence_parallel(draft: Draft) -> None:
    if draft.value("parallel.sequence_parallel") and draft.value("parallel.tensor_model_parallel_size", 1) == 1:
        draft.set("parallel.sequence_parallel", False, because="the launcher switches it off without TP")
        draft.assume("sequence_parallel is off, as in the launcher where tensor_model_parallel_size is 1")


def take_moe_layer_recompute(draft: Draft, name: str) -> None:
    """Make of the old name ``moe_layer_recompute`` what Megatron-Core's TransformerConfig makes of it."""
    if not draft.given.get(name):
        return
    if draft.value("recompute.recompute_granularity") == "full":
        draft.refuse(name, True, "full recomputation has the experts in it: leave it out")
        return
    modules = draft.value("recompute.recompute_modules")
    modules = ["core_attn"] if modules is None else modules
    together = [*modules, *(["moe"] if "moe" not in modules else [])]
    draft.set("recompute.recompute_granularity", "selective", because="renamed", name=name)
    draft.set("recompute.recompute_modules", together, because="renamed", name=name)
    draft.assume("moe_layer_recompute is deprecated, and taken for moe in recompute_modules")


def _offloading_and_optimizer(draft: Draft) -> None:
    if draft.value("offload.cpu_offloading_num_layers", 0) > 0:
        draft.set("offload.cpu_offloading", True, because="set by the launcher", name="cpu_offloading_num_layers")
    if not draft.value("optimizer.optimizer_cpu_offload"):
        draft.drop("optimizer.optimizer_offload_fraction", 1.0)
    else:
        draft.default("optimizer.optimizer_offload_fraction", 1.0, because=f"{_LAUNCHER}; 0.0 in the dataclass")
    if draft.value("optimizer.optimizer") == "muon":
        draft.default("optimizer.muon_momentum", 0.9, because=f"{_LAUNCHER}; 0.95 in the dataclass")


def _megatron_fsdp(draft: Draft) -> None:
    if not draft.value("parallel.use_megatron_fsdp"):
        draft.drop("parallel.data_parallel_sharding_strategy", "optim_grads_params")
    else:
        draft.default("parallel.data_parallel_sharding_strategy", "optim_grads_params", because=_LAUNCHER)
        because = "Megatron-FSDP comes with it"
        draft.set("optimizer.use_distributed_optimizer", True, because=because, name="use_distributed_optimizer")


def _vocabulary(draft: Draft) -> None:
    size, tokenizer = draft.value("model.vocab_size"), draft.given.get("tokenizer_type")
    padded = draft.given.get("padded_vocab_size")
    if padded is not None:
        draft.set("model.vocab_size", padded, because="padded already", name="padded_vocab_size")
    if padded is not None or draft.given.get("no_pad_vocab_size") or draft.given.get("pad_vocab_size") is False:
        draft.set("model.make_vocab_size_divisible_by", 1, because="the vocabulary is not padded further")
    if padded is not None:
        return
    if size is None and str(tokenizer) in _TOKENIZERS:
        draft.set("model.vocab_size", _TOKENIZERS[str(tokenizer)], because=f"of {tokenizer}", name="tokenizer_type")
    elif size is None:
        whose = f"{tokenizer}'s" if tokenizer else "the tokenizer's"
        draft.assume(
            f"the vocabulary is {whose} and its size is not given: 50257 tokens assumed (override model.vocab_size)"
        )


def _formats(draft: Draft) -> None:
    bf16, fp16 = bool(draft.value("precision.bf16")), bool(draft.value("precision.fp16"))
    draft.default("precision.bf16", False, because=_LAUNCHER)
    in_fp32 = bool(draft.given.get("accumulate_allreduce_grads_in_fp32"))
    if bf16:
        narrow = draft.value("optimizer.main_grads_dtype", "fp32") != "fp32"
        in_fp32 = not draft.given.get("grad_reduce_in_bf16") and (in_fp32 or not narrow)
        because = "bf16 accumulates in fp32 by default" if in_fp32 else "told"
        name = "main_grads_dtype" if narrow else "grad_reduce_in_bf16"
        draft.set("precision.grad_reduce_in_fp32", in_fp32, because=because, name=name)
    elif fp16:
        draft.set("precision.grad_reduce_in_fp32", in_fp32, because=_LAUNCHER)
    draft.default("precision.gradient_accumulation_fusion", True, because=_LAUNCHER)


MEGATRON = Dialect("megatron", "Megatron-LM arguments", TABLE, WITHOUT_MEMORY, finish)
