"""NeMo's megatron_gpt_config.yaml (NeMo 1.x), whole or as overrides ``model.activations_checkpoint_method=block``.

NeMo 2.0 takes Megatron-Core's own names, which are in this table as well.
"""

from __future__ import annotations

from typing import Any

from oomscope.config.importers import megatron_arguments
from oomscope.config.importers.draft import Draft, keep_mask_on_host, note_ramp, replicas, switch_off_overlap
from oomscope.config.importers.rows import (
    Choice,
    Dialect,
    ForFinish,
    Row,
    Switch,
    To,
    Unmodelled,
    is_on,
    listed,
    negated,
    number_as_float,
    same_names,
    whole,
)

_GATED = {"model.gated_linear_unit": True}
_SILU = {**_GATED, "model.activation_func": "silu"}
_GELU = {**_GATED, "model.activation_func": "gelu"}
_SHARDED = {"optimizer.optimizer": "adam", "optimizer.use_distributed_optimizer": True}
_ADAM_DTYPE = Unmodelled(
    "states and gradients of apex's optimizer in other types are not implemented", ("fp32", "float32")
)
_BY_PIPELINE = "later stages that recompute fewer layers have no counterpart in Megatron-Core"
_BY_MICROBATCH = "recomputation of some microbatches alone is not implemented"


def _numbers(value: Any) -> list[float]:
    return [number_as_float(item) for item in listed(value)]


TABLE: dict[str, Row] = {
    **{f"model.{name}": row for name, row in megatron_arguments.TABLE.items() if isinstance(row, Unmodelled)},
    **same_names("model", "parallel", "recompute", "offload", "precision", "data", prefix="model."),
    "trainer.devices": ForFinish(),
    "trainer.num_nodes": ForFinish(whole),
    "trainer.precision": ForFinish(),
    "trainer.strategy": Unmodelled("what another strategy shards is not implemented", ("auto", "ddp")),
    "trainer.gradient_clip_val": To("optimizer.clip_grad", number_as_float),
    "model.precision": ForFinish(),
    "model.megatron_amp_O2": ForFinish(is_on),
    "model.encoder_seq_length": To("data.seq_length", whole),
    "model.data.seq_length": To("data.seq_length", whole),
    "model.tokenizer.type": ForFinish(),
    "model.tokenizer.vocab_size": To("model.vocab_size", whole),
    "model.rampup_batch_size": ForFinish(listed),
    "model.activation": Choice(
        {
            "gelu": {"model.activation_func": "gelu"},
            "relu": {"model.activation_func": "relu"},
            "squared-relu": {"model.activation_func": "squared_relu"},
            "geglu": _GELU,
            "fast_geglu": _GELU,
            "swiglu": _SILU,
            "fast_swiglu": _SILU,
            "reglu": {**_GATED, "model.activation_func": "relu"},
            "fast_reglu": {**_GATED, "model.activation_func": "relu"},
        },
        alike={"openai_gelu": ("gelu", "the same tensors, where it is fused")},
    ),
    "model.bias": To("model.add_bias_linear", is_on),
    "model.normalization": Choice(
        {"layernorm": {"model.normalization": "LayerNorm"}, "rmsnorm": {"model.normalization": "RMSNorm"}},
        alike={
            "layernorm1p": ("layernorm", "another initial value, the same tensors"),
            "low_precision_layernorm": ("layernorm", "the same tensors"),
        },
    ),
    "model.transformer_engine": Switch(
        {"model.transformer_impl": "transformer_engine"}, {"model.transformer_impl": "local"}
    ),
    "model.use_flash_attention": Switch({"model.attention_backend": "flash"}),
    "model.get_attention_mask_from_fusion": To("data.create_attention_mask_in_dataloader", negated),
    "model.mcore_gpt": ForFinish(),
    "model.moe_layer_recompute": ForFinish(is_on),
    "model.num_moe_experts": To("model.num_moe_experts"),
    "model.fp8": Switch({"precision.fp8": "hybrid"}),
    "model.fp8_e4m3": Switch({"precision.fp8": "e4m3"}),
    "model.activations_checkpoint_granularity": To("recompute.recompute_granularity"),
    "model.activations_checkpoint_method": To("recompute.recompute_method"),
    "model.activations_checkpoint_num_layers": To("recompute.recompute_num_layers", whole),
    "model.activations_checkpoint_layers_per_pipeline": Unmodelled(_BY_PIPELINE),
    "model.num_micro_batches_with_partial_activation_checkpoints": Unmodelled(_BY_MICROBATCH),
    "model.optim.name": Choice(
        {
            "adam": {"optimizer.optimizer": "adam"},
            "sgd": {"optimizer.optimizer": "sgd"},
            "distributed_fused_adam": _SHARDED,
        },
        alike={
            "fused_adam": ("adam", "the same states"),
            "adamw": ("adam", "the same states"),
            "mcore_distributed_optim": ("distributed_fused_adam", "Megatron-Core's distributed optimizer"),
        },
    ),
    **{f"model.optim.{name}": _ADAM_DTYPE for name in ("dtype", "grad_sync_dtype", "store_param_remainders")},
    "model.optim.lr": To("optimizer.lr", number_as_float),
    "model.optim.weight_decay": To("optimizer.weight_decay", number_as_float),
    "model.optim.betas": ForFinish(_numbers),
    "model.optim.overlap_grad_sync": To("optimizer.overlap_grad_reduce", is_on),
    "model.optim.overlap_param_sync": To("optimizer.overlap_param_gather", is_on),
    "model.ub_tp_comm_overlap": To("parallel.tp_comm_overlap", is_on),
    "model.fsdp": Unmodelled("torch's first FSDP is not implemented"),
    "model.seed": To("probe.seed", whole),
    "model.peft.peft_scheme": Unmodelled("adapters are measured with a harness (docs/probe.md)", ("none", "null")),
}
"""Dotted name to what it becomes (NeMo examples/nlp/language_modeling/conf/megatron_gpt_config.yaml)."""

_NAMES = """
name restore_from_path trainer.* exp_manager.* cluster_type run.* hydra.* defaults.* model.data.* model.tokenizer.*
model.nsys_profile.* model.optim.* model.resume_from_checkpoint model.use_scaled_init_method model.native_amp_*
model.hysteresis model.pre_process model.post_process model.persist_layer_norm model.rotary_percentage
model.attention_type model.onnx_safe model.apex_transformer_* model.grad_allreduce_chunk_size_mb
model.grad_div_ar_fusion model.gradient_as_bucket_view model.sync_batch_comm model.headscale model.ub_* model.hidden_act
model.fp8_interval model.reduce_amax model.use_emha model.gc_interval model.name
model.num_query_group_* model.dist_ckpt_* model.use_cpu_initialization
"""

WITHOUT_MEMORY = " ".join([_NAMES, *(f"model.{name}" for name in megatron_arguments.WITHOUT_MEMORY.split())])


def finish(draft: Draft) -> None:
    """Derive what NeMo derives.

    Source: NeMo nlp/models/language_modeling/megatron_base_model.py and megatron_gpt_model.py.
    """
    note_ramp(draft)
    keep_mask_on_host(draft)
    megatron_arguments.take_moe_layer_recompute(draft, "model.moe_layer_recompute")
    given = draft.given
    devices, nodes = given.get("trainer.devices"), given.get("trainer.num_nodes", 1)
    devices = len(devices) if isinstance(devices, list) else devices
    if isinstance(devices, int) and devices > 0 and draft.world_size is None:
        draft.world_size = devices * (nodes or 1)
    betas = given.get("model.optim.betas")
    for key, beta in zip(("adam_beta1", "adam_beta2"), betas or (), strict=False):
        draft.set(f"optimizer.{key}", beta, because="of betas", name="model.optim.betas")
    if draft.value("recompute.recompute_granularity") == "selective":
        for key in ("recompute_method", "recompute_num_layers"):
            if draft.settings.pop(f"recompute.{key}", None) is not None:
                draft.assume(f"{key} is left out: NeMo does not use it with selective")
    if not draft.is_whole:
        return
    _precision(draft)
    _overridden(draft)
    switch_off_overlap(draft)
    draft.default("model.transformer_impl", "local", because="transformer_engine is not set")
    if draft.value("model.position_embedding_type") == "rope":
        draft.default("model.apply_rope_fusion", False, because="default of Megatron-Core")
    if not draft.is_set("model.vocab_size"):
        tokenizer = given.get("model.tokenizer.type")
        known = tokenizer == "GPT2BPETokenizer"
        said = f"of {tokenizer}" if known else "not given: override model.vocab_size"
        draft.assume(f"the vocabulary is the tokenizer's: 50257 tokens ({said})")


def _overridden(draft: Draft) -> None:
    """Change what NeMo changes before it builds the model (MegatronBaseModel, _validate_and_override_config).

    It never sets deallocate_pipeline_outputs, whose default in Megatron-Core is false.
    """
    draft.default("parallel.deallocate_pipeline_outputs", False, because="NeMo leaves Megatron-Core's default")
    if draft.value("parallel.sequence_parallel") and draft.value("parallel.tensor_model_parallel_size", 1) == 1:
        draft.set("parallel.sequence_parallel", False, because="NeMo switches it off without TP")
        draft.assume("sequence_parallel is off, as in NeMo where tensor_model_parallel_size is 1")
    sharded = draft.value("optimizer.use_distributed_optimizer")
    alone = draft.value("parallel.pipeline_model_parallel_size", 1) == 1 and replicas(draft) > 1
    if draft.value("precision.gradient_accumulation_fusion") and alone and not sharded:
        draft.set("precision.gradient_accumulation_fusion", False, because="NeMo switches it off")
        draft.assume("gradient_accumulation_fusion is off, as in NeMo without pipeline and distributed_fused_adam")


def _precision(draft: Draft) -> None:
    """Megatron's own mixed precision is O2; without it NeMo runs torch's autocast over parameters in fp32."""
    written = str(draft.given.get("trainer.precision", draft.given.get("model.precision", 32))).lower()
    name = "trainer.precision" if "trainer.precision" in draft.given else "model.precision"
    half = "bf16" if "bf16" in written else "fp16" if "16" in written else None
    draft.set("precision.bf16", half == "bf16", because=f"precision {written}", name=name)
    if half == "fp16":
        draft.set("precision.fp16", True, because=f"precision {written}", name=name)
        draft.set("precision.grad_reduce_in_fp32", False, because="fp16 reduces in fp16", name=name)
    if half and not draft.given.get("model.megatron_amp_O2"):
        draft.refuse("model.megatron_amp_O2", False, "autocast over parameters in fp32 is not implemented")


NEMO = Dialect("nemo", "NeMo configuration", TABLE, WITHOUT_MEMORY, finish)
