"""Sections ``optimizer`` and ``precision``: what is updated, where its states lie, and number formats."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oomscope.config.schema.section import Count, Section


class OptimizerConfig(Section):
    """The optimizer (Megatron-Core ``OptimizerConfig`` and ``DistributedDataParallelConfig``)."""

    optimizer: Literal["adam", "sgd", "muon"] = "adam"
    """Adam (decoupled weight decay), SGD with momentum, or Muon for matrices and Adam for the rest."""
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    decoupled_weight_decay: bool = True
    """AdamW; false (weight decay in the gradient) is not modelled."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay of the second moment."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""
    sgd_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of Muon."""
    muon_nesterov: bool = False
    """Look one step ahead: the direction is a copy, 4 bytes an element of the matrix that is stepped."""
    muon_split_qkv: bool = True
    """Make queries, keys and values orthogonal one by one."""
    muon_fp32_matmul_prec: Literal["low", "medium", "high"] = "medium"
    """Precision of Newton-Schulz iterations; medium runs them in bf16, the others in fp32."""
    muon_num_ns_steps: Count = 5
    """Newton-Schulz iterations a step; no byte depends on it."""
    muon_tp_mode: Literal["blockwise", "duplicated", "distributed"] = "duplicated"
    """How TP ranks step a matrix that they share: each its part (blockwise), or each the whole, gathered before."""
    muon_extra_scale_factor: float = Field(default=1.0, gt=0)
    """Multiply Muon's updates by this."""
    clip_grad: float = Field(default=1.0, ge=0)
    """Clip the gradient's global norm to this; 0 turns clipping off."""
    loss_scale: float | None = Field(default=None, gt=0)
    """Multiply the loss by this and divide the gradients by it; null means dynamic scaling in fp16, else none."""
    initial_loss_scale: float = Field(default=2.0**32, gt=0)
    """First factor of dynamic loss scaling."""
    min_loss_scale: float = Field(default=1.0, gt=0)
    """Least factor of dynamic loss scaling."""
    loss_scale_window: Count = 1000
    """Steps without overflow after which the factor is doubled."""
    hysteresis: Count = 2
    """Overflows after which the factor is halved."""
    use_precision_aware_optimizer: bool = False
    """Let the optimizer keep master weights and moments in the dtypes below, and read gradients as they are."""
    store_param_remainders: bool = True
    """With use_precision_aware_optimizer, keep of a bf16 parameter's fp32 master the lower 16 bits: 2 bytes less."""
    main_grads_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of main gradients; bf16 needs use_precision_aware_optimizer and grad_reduce_in_fp32 off."""
    main_params_dtype: Literal["fp32", "fp16"] = "fp32"
    """Dtype of master weights."""
    exp_avg_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Dtype of Adam's first moment; fp8 is not modelled."""
    exp_avg_sq_dtype: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Dtype of Adam's second moment; fp8 is not modelled."""
    use_distributed_optimizer: bool = False
    """Shard master weights and optimizer states over the data-parallel ranks."""
    num_distributed_optimizer_instances: Count = 1
    """Instances of the distributed optimizer: each shards over its part of the data-parallel ranks, so that
    parameters are gathered among fewer, and each rank holds that many times the states."""
    overlap_grad_reduce: bool = False
    """Reduce gradients bucket by bucket during backward."""
    overlap_param_gather: bool = False
    """Gather updated parameters while the next forward begins, in place: no byte depends on it."""
    overlap_param_gather_with_optimizer_step: bool = False
    """Begin to gather the first model chunk's parameters while the other chunks' are updated, in place too; the chunks'
    gradients then have one bucket each."""
    log_params_norm: bool = False
    """Log the norm of all parameters after each step; Megatron-FSDP then lets go of what it has gathered ahead."""
    optimizer_cpu_offload: bool = False
    """Keep optimizer states of optimizer_offload_fraction of the parameters on the host."""
    optimizer_offload_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of parameters whose optimizer states live on the host."""
    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Overlap the copies of the offloaded optimizer."""


class PrecisionConfig(Section):
    """Number formats (Megatron-Core ``TransformerConfig`` and its base). Neither bf16 nor fp16 means fp32."""

    bf16: bool = True
    """Parameters and activations in bfloat16, with fp32 master weights."""
    fp16: bool = False
    """Parameters and activations in float16, with fp32 master weights and loss scaling."""
    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in fp32 main-gradient buffers."""
    fp8: Literal["e4m3", "hybrid"] | None = None
    """The matrix products of the layers in fp8: all in e4m3, or gradients in e5m2 (hybrid)."""
    fp8_recipe: Literal["delayed", "tensorwise", "mxfp8", "blockwise", "custom"] = "delayed"
    """How fp8 tensors are scaled: by one factor that follows earlier steps, by one of their own, or by blocks."""
    fp8_param: bool = False
    """Keep the layers' weights in fp8 alone, and gather them so; Megatron-LM calls it fp8_param_gather."""
    fp8_amax_history_len: int = Field(default=1, ge=1, le=2**20)
    """Largest values remembered of each tensor under delayed scaling."""
    first_last_layers_bf16: bool = False
    """Leave some layers at both ends of the model in 16 bits."""
    num_layers_at_start_in_bf16: int = Field(default=1, ge=0)
    """First layers in 16 bits, with first_last_layers_bf16."""
    num_layers_at_end_in_bf16: int = Field(default=1, ge=0)
    """Last layers in 16 bits, with first_last_layers_bf16."""
    disable_parameter_transpose_cache: bool = False
    """Quantise weights in every microbatch and keep no copy of them from one to the next."""
    gradient_accumulation_fusion: bool = False
    """Weight gradients are written straight into the main-gradient buffer, with no temporary of the weight's size."""
