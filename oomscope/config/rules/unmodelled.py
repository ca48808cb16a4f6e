"""What Megatron-Core has and this version does not model: refused with the reason, never ignored in silence.

A row leaves this table in the change that models its key. What upstream checks of these features is not checked here.
"""

from __future__ import annotations

from oomscope.config.rules.rule import TRANSFORMER, Rule, conflict, unmodelled
from oomscope.config.schema import Config

_FSDP2 = "Megatron-Core distributed/torch_fully_sharded_data_parallel.py"
_OTHER_MIXERS = ("gdn", "gdp", "mhc")
"""Prefixes of the names of modules in layers of other kinds."""


def _beside_fp8(config: Config) -> list[str]:
    model, offload, parallel, precision = config.model, config.offload, config.parallel, config.precision
    beside = {
        "activations in fp32": not (precision.bf16 or precision.fp16),
        "experts": model.num_moe_experts is not None,
        "multi-latent attention": model.multi_latent_attention,
        "multi-token prediction": model.mtp_num_layers is not None,
        "offloaded activations": offload.cpu_offloading or offload.fine_grained_activation_offloading,
        "parameters that FSDP shards": parallel.use_torch_fsdp2 or parallel.use_megatron_fsdp,
    }
    return [name for name, is_there in beside.items() if is_there and precision.fp8 is not None]


UNMODELLED: tuple[Rule, ...] = (
    unmodelled(
        id="N-shared-groups",
        keys="parallel.tensor_model_parallel_size model.num_query_groups",
        applies=lambda c: (
            c.query_groups < c.parallel.tensor_model_parallel_size
            and c.parallel.tensor_model_parallel_size % c.query_groups == 0
        ),
        message="sharing {c.query_groups} query groups among {c.parallel.tensor_model_parallel_size} "
        "tensor-parallel ranks is not modelled",
        remedy="set tensor_model_parallel_size to at most num_query_groups",
        source="Megatron-Core transformer/attention.py",
    ),
    conflict(
        "N-cp-latent",
        "parallel.context_parallel_size",
        "model.multi_latent_attention",
        "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py",
        severity="not_modelled",
    ),
    unmodelled(
        id="N-variant",
        keys="recompute.recompute_modules offload.offload_modules",
        applies=lambda c: any(m.startswith(_OTHER_MIXERS) for m in (*c.recompute_modules, *c.offload.offload_modules)),
        message="modules of experimental attention variants and hyper-connections (gdn, gdp, mhc) are not modelled",
        remedy="leave them out",
        source=TRANSFORMER,
    ),
    unmodelled(
        id="N-op-fuser",
        keys="offload.offload_modules",
        applies=lambda c: "fused_group_mlp" in c.offload.offload_modules,
        message="fused operations, which save other tensors, are not modelled",
        remedy="leave fused_group_mlp out",
        source=TRANSFORMER,
    ),
    unmodelled(
        id="N-dispatcher",
        keys="model.moe_token_dispatcher_type",
        applies=lambda c: c.model.num_moe_experts is not None and c.model.moe_token_dispatcher_type == "flex",  # noqa: S105
        message="the flex dispatcher, with the buffers of DeepEP, is not modelled",
        remedy="set moe_token_dispatcher_type to alltoall",
        source="Megatron-Core transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher",
    ),
    unmodelled(
        id="N-expert-bias",
        keys="model.add_bias_linear model.num_moe_experts",
        applies=lambda c: c.model.num_moe_experts is not None and c.model.add_bias_linear,
        message="experts with biases are not modelled",
        remedy="set add_bias_linear to false (add_qkv_bias keeps those of the QKV projection)",
        source="Megatron-Core transformer/moe/experts.py",
    ),
    unmodelled(
        id="N-expert-gate",
        keys="model.bias_activation_fusion model.num_moe_experts model.gated_linear_unit",
        applies=lambda c: (
            c.model.num_moe_experts is not None and c.model.gated_linear_unit and not c.model.bias_activation_fusion
        ),
        message="experts whose gate is not fused are not modelled",
        remedy="set bias_activation_fusion to true",
        source="Megatron-Core transformer/moe/experts.py",
    ),
    unmodelled(
        id="N-mtp-stage",
        keys="parallel.pipeline_model_parallel_layout model.mtp_num_layers",
        applies=lambda c: any("m" in stage for stage in c.stage_layout[:-1]),
        message="multi-token prediction on another stage than that of the loss is not modelled",
        remedy="write every m of the layout into its last stage, before L",
        source="Megatron-Core pipeline_parallel/p2p_communication.py (mtp_standalone)",
    ),
    conflict(
        "N-mtp-defer",
        "model.mtp_num_layers",
        "parallel.defer_embedding_wgrad_compute",
        "Megatron-Core tensor_parallel/layers.py (inputs are kept in forward's order, gradients in backward's)",
        severity="not_modelled",
    ),
    conflict(
        "N-mtp-fsdp",
        "model.mtp_num_layers",
        "parallel.use_torch_fsdp2 parallel.use_megatron_fsdp",
        _FSDP2,
        severity="not_modelled",
    ),
    conflict(
        "N-offload-v1",
        "offload.nvte_cpu_offload_v1",
        "offload.cpu_offloading",
        "Transformer Engine pytorch/cpu_offload.py (its first implementation of layer offloading)",
        severity="not_modelled",
    ),
    unmodelled(
        id="N-optimizer-offload",
        keys="optimizer.optimizer optimizer.optimizer_cpu_offload optimizer.optimizer_offload_fraction",
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.optimizer_offload_fraction > 0
            and c.optimizer.optimizer != "adam"
        ),
        message="{c.optimizer.optimizer} with states on the host is not modelled",
        remedy="remove optimizer_cpu_offload, or use adam",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    unmodelled(
        id="N-coupled-decay",
        keys="optimizer.decoupled_weight_decay",
        applies=lambda c: not c.optimizer.decoupled_weight_decay,
        message="Adam with weight decay in the gradient is not modelled",
        remedy="set decoupled_weight_decay to true",
        source="Megatron-Core optimizer/__init__.py",
    ),
    unmodelled(
        id="N-narrow-states",
        keys="optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype optimizer.main_params_dtype",
        applies=lambda c: (
            "fp8" in {c.optimizer.exp_avg_dtype, c.optimizer.exp_avg_sq_dtype}
            or c.optimizer.main_params_dtype != "fp32"
        ),
        message="moments in fp8 and master weights in fp16, each with a scale, are not modelled",
        remedy="keep moments in bf16, fp16 or fp32, and master weights in fp32",
        source="Transformer Engine pytorch/optimizers/fused_adam.py",
    ),
    conflict(
        "N-layer-wise",
        "optimizer.optimizer=muon",
        "optimizer.use_distributed_optimizer",
        "Megatron-Core optimizer/layer_wise_optimizer.py",
        remedy="set use_distributed_optimizer to false: every rank then has all states",
        severity="not_modelled",
    ),
    unmodelled(
        id="N-muon-distributed",
        keys="optimizer.muon_tp_mode",
        applies=lambda c: (
            c.optimizer.optimizer == "muon"
            and c.optimizer.muon_tp_mode == "distributed"
            and c.parallel.tensor_model_parallel_size > 1
        ),
        message="muon_tp_mode distributed is not modelled",
        remedy="set muon_tp_mode to duplicated or blockwise",
        source="Megatron-Core optimizer/emerging_optimizers.py, TensorParallelMuon",
    ),
    conflict(
        "N-mfsdp",
        "parallel.use_megatron_fsdp",
        "parallel.pipeline_model_parallel_size precision.gradient_accumulation_fusion"
        " optimizer.num_distributed_optimizer_instances parallel.fsdp_double_buffer"
        " optimizer.use_precision_aware_optimizer"
        " optimizer.optimizer_cpu_offload",
        "Megatron-Core distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py; optimizer/__init__.py",
        severity="not_modelled",
    ),
    unmodelled(
        id="N-fsdp-experts",
        keys="parallel.use_torch_fsdp2 parallel.expert_tensor_parallel_size",
        applies=lambda c: (
            c.parallel.use_torch_fsdp2
            and c.model.num_moe_experts is not None
            and c.parallel.expert_tensor_parallel_size not in (None, c.parallel.tensor_model_parallel_size)
        ),
        message="use_torch_fsdp2 shards experts over the ranks of dense layers, and these experts have other replicas",
        remedy="set expert_tensor_parallel_size to tensor_model_parallel_size",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py (one group for all parameters)",
    ),
    unmodelled(
        id="N-fsdp-alone",
        keys="parallel.use_torch_fsdp2 parallel.data_parallel_size parallel.context_parallel_size",
        applies=lambda c: (
            c.parallel.use_torch_fsdp2 and c.parallel.data_parallel_size * c.parallel.context_parallel_size == 1
        ),
        message="use_torch_fsdp2 has no ranks to shard parameters over, since the data-parallel size is 1",
        remedy="set data_parallel_size above 1, or use_torch_fsdp2 to false",
        source=_FSDP2,
    ),
    unmodelled(
        id="N-fp8",
        keys="precision.fp8 precision.bf16 model.num_moe_experts model.multi_latent_attention "
        "model.mtp_num_layers offload.cpu_offloading offload.fine_grained_activation_offloading "
        "parallel.use_torch_fsdp2 parallel.use_megatron_fsdp",
        applies=_beside_fp8,
        message="fp8 with {found} is not modelled",
        remedy="set fp8 to null (in bf16 activations are an upper bound, weights are not), or leave out what is named",
        source="Transformer Engine pytorch/module (grouped_linear.py, linear.py, base.py); pytorch/cpu_offload.py",
    ),
    unmodelled(
        id="N-fp8-recipe",
        keys="precision.fp8_recipe",
        applies=lambda c: c.precision.fp8 is not None and c.precision.fp8_recipe == "custom",
        message="a custom recipe is not modelled",
        remedy="set fp8_recipe to tensorwise",
        source="Megatron-Core fp8_utils.py, get_fp8_recipe",
    ),
    unmodelled(
        id="N-fp8-param",
        keys="precision.fp8_param precision.fp8_recipe optimizer.use_precision_aware_optimizer optimizer.optimizer",
        applies=lambda c: (
            c.precision.fp8_param
            and (
                c.precision.fp8_recipe not in ("delayed", "tensorwise")
                or c.optimizer.use_precision_aware_optimizer
                or c.optimizer.optimizer_cpu_offload
                or c.optimizer.optimizer == "muon"
            )
        ),
        message="parameters in fp8 are there with one scale a tensor (delayed, tensorwise) and Adam or SGD in "
        "fp32 on the device",
        remedy="set fp8_param to false, or fp8_recipe to tensorwise and train with adam in fp32 on the device",
        source="Megatron-Core distributed/param_and_grad_buffer.py; optimizer/distrib_optimizer.py",
    ),
)
