"""The configurations that are measured on the virtual card and a real one: one idea of transformer memory each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oomscope.config.load import load_preset
from oomscope.config.schema import Config

BASE = (
    *("model.num_layers=4", "model.hidden_size=2048", "model.num_attention_heads=16", "model.num_query_groups=16"),
    *("model.ffn_hidden_size=8192", "model.vocab_size=32000", "model.max_position_embeddings=null"),
    *("parallel.tensor_model_parallel_size=1", "parallel.sequence_parallel=false", "parallel.data_parallel_size=1"),
    *("data.seq_length=2048", "data.micro_batch_size=2", "data.num_microbatches=1"),
)
"""Laid upon the preset llama3-8b."""
_GPT = (
    *("model.normalization=LayerNorm", "model.activation_func=gelu", "model.gated_linear_unit=false"),
    *("model.add_bias_linear=true", "model.hidden_dropout=0.1", "model.attention_dropout=0.1"),
)
_MOE = (
    *("model.num_moe_experts=8", "model.moe_ffn_hidden_size=2048", "model.moe_router_topk=2"),
    *("model.moe_token_dispatcher_type=alltoall", "model.moe_aux_loss_coeff=0.01"),
)
_MLA = ("model.multi_latent_attention=true", "model.num_query_groups=16")
_TP = ("parallel.tensor_model_parallel_size=4",)
_SP = (*_TP, "parallel.sequence_parallel=true")
_PP = ("parallel.pipeline_model_parallel_size=2", "data.num_microbatches=4")
_SELECTIVE = "recompute.recompute_granularity=selective"
_FULL = "recompute.recompute_granularity=full"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    name: str
    overrides: tuple[str, ...]

    def config(self, more: Sequence[str] = ()) -> Config:
        """Return the configuration, with ``more`` on top.

        Raises:
            ConfigError: the rules refuse it.
        """
        return load_preset("llama3-8b", (*BASE, *self.overrides, *more)).config


def _modules(*names: str) -> tuple[str, str]:
    return _SELECTIVE, f"recompute.recompute_modules=[{','.join(names)}]"


_ROWS: dict[str, tuple[str, ...]] = {
    "dense swiglu flash": (),
    "dense gpt with dropout": _GPT,
    "gqa": ("model.num_query_groups=4",),
    "unfused attention": ("model.attention_backend=unfused",),
    "unfused attention with dropout": (*_GPT, "model.attention_backend=unfused"),
    "tied embeddings": ("model.share_embeddings_and_output_weights=true",),
    "large vocabulary": ("model.vocab_size=128256",),
    "fused loss": ("model.cross_entropy_loss_fusion=true",),
    "sequence 512": ("data.seq_length=512", "data.micro_batch_size=8"),
    "sequence 8k": ("data.seq_length=8192", "data.micro_batch_size=1"),
    "sequence 32k": ("data.seq_length=32768", "data.micro_batch_size=1", "model.num_layers=2"),
    "4 microbatches": ("data.num_microbatches=4",),
    "8 microbatches, fused accumulation": (
        "data.num_microbatches=8",
        "precision.gradient_accumulation_fusion=true",
    ),
    "bf16 gradients": ("precision.grad_reduce_in_fp32=false",),
    "fp16": ("precision.bf16=false", "precision.fp16=true"),
    "precision-aware optimizer": (
        "optimizer.use_precision_aware_optimizer=true",
        "optimizer.exp_avg_dtype=bf16",
        "optimizer.exp_avg_sq_dtype=bf16",
    ),
    "sgd": ("optimizer.optimizer=sgd",),
    "tp4": _TP,
    "tp4 sp": _SP,
    "tp4 sp large vocabulary": (*_SP, "model.vocab_size=128256"),
    "pp2 first stage": _PP,
    "pp2 vpp2": (*_PP, "parallel.virtual_pipeline_model_parallel_size=2"),
    "cp2": ("parallel.context_parallel_size=2", "data.seq_length=8192", "data.micro_batch_size=1"),
    "dp8 distributed optimizer": ("parallel.data_parallel_size=8",),
    "moe 8 experts": _MOE,
    "moe grouped": (*_MOE, "model.moe_grouped_gemm=true", "model.moe_permute_fusion=true"),
    "moe ep4": (*_MOE, "parallel.expert_model_parallel_size=4", "parallel.data_parallel_size=4"),
    "moe capacity": (
        *_MOE,
        "model.moe_expert_capacity_factor=1.25",
        "model.moe_pad_expert_input_to_capacity=true",
    ),
    "moe shared experts": (*_MOE, "model.moe_shared_expert_intermediate_size=2048"),
    "mla": _MLA,
    "selective core_attn": (*_modules("core_attn"), "model.attention_backend=unfused"),
    "selective mlp": _modules("mlp"),
    "selective layernorm": (*_modules("layernorm"), "model.transformer_impl=local"),
    "selective moe_act": (*_MOE, "model.moe_grouped_gemm=true", *_modules("moe_act")),
    "selective moe": (*_MOE, *_modules("moe")),
    "selective mla_up_proj": (*_MLA, *_modules("mla_up_proj")),
    "full uniform": (_FULL, "recompute.recompute_method=uniform", "recompute.recompute_num_layers=1"),
    "full block": (_FULL, "recompute.recompute_method=block", "recompute.recompute_num_layers=2"),
    "layer offload": ("offload.cpu_offloading=true", "offload.cpu_offloading_num_layers=2"),
    "fine-grained offload": (
        "offload.fine_grained_activation_offloading=true",
        "offload.offload_modules=[qkv_linear,core_attn]",
    ),
    "optimizer offload half": ("optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=0.5"),
    "optimizer offload": ("optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0"),
    "expandable segments": ("allocator.conf=expandable_segments:True",),
}

CASES = tuple(Case(name=name, overrides=overrides) for name, overrides in _ROWS.items())
