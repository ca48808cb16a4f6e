"""What Megatron-Core has and this version does not model: refused with the reason, never ignored in silence.

A row leaves this table in the change that models its key.
"""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_MEGATRON_FSDP = "Megatron-Core distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py"
_MODEL_PARALLEL = "Megatron-Core model_parallel_config.py"
_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_MOE_MODULES = ("moe", "moe_act", "shared_experts")


def moe_modules(config: Config) -> list[str]:
    """Return the modules to recompute that only MoE layers have."""
    return [module for module in config.recompute_modules if module in _MOE_MODULES]


COVERAGE_RULES: tuple[Rule, ...] = (
    Rule(
        id="N-shared-groups",
        severity="not_modelled",
        keys=("parallel.tensor_model_parallel_size", "model.num_query_groups"),
        applies=lambda config: (
            config.query_groups < config.parallel.tensor_model_parallel_size
            and config.parallel.tensor_model_parallel_size % config.query_groups == 0
        ),
        summary="Query groups that several tensor-parallel ranks share.",
        message=lambda config: (
            f"sharing {config.query_groups} query groups among "
            f"{config.parallel.tensor_model_parallel_size} tensor-parallel ranks is not there"
        ),
        remedy="set tensor_model_parallel_size to at most num_query_groups",
        source="Megatron-Core transformer/attention.py",
    ),
    Rule(
        id="N-optimizer-offload",
        severity="not_modelled",
        keys=("optimizer.optimizer", "optimizer.optimizer_cpu_offload", "optimizer.optimizer_offload_fraction"),
        applies=lambda config: (
            config.optimizer.optimizer_cpu_offload
            and config.optimizer.optimizer_offload_fraction > 0
            and config.optimizer.optimizer != "adam"
        ),
        summary="SGD or Muon on the host.",
        message=lambda config: f"{config.optimizer.optimizer} with states on the host is not there",
        remedy="remove optimizer_cpu_offload, or use adam",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    Rule(
        id="N-cuda-graph",
        severity="not_modelled",
        keys=("cuda_graph.cuda_graph_impl", "cuda_graph.cuda_graph_scope"),
        applies=lambda config: (
            config.cuda_graph.cuda_graph_impl != "none" or config.cuda_graph.cuda_graph_scope is not None
        ),
        summary="CUDA graphs: their static buffers and private pools follow from no rule.",
        message="CUDA graphs are not there, and what they hold can only be measured",
        remedy=(
            "set cuda_graph_impl to none, and add a measured constant to device.non_torch_bytes "
            "(a few GiB, more than 10 GiB with pipelines)"
        ),
        source="Megatron-Bridge docs/training/cuda-graphs.md",
    ),
    Rule(
        id="N-variant",
        severity="not_modelled",
        keys=("model.experimental_attention_variant", "model.enable_mhc_connections"),
        applies=lambda config: (
            config.model.experimental_attention_variant is not None or config.model.enable_mhc_connections
        ),
        summary="Experimental attention variants and hyper-connections.",
        message="experimental attention variants and hyper-connections are not there",
        remedy="set experimental_attention_variant to null and enable_mhc_connections to false",
        source=_TRANSFORMER,
    ),
    Rule(
        id="N-gdp",
        severity="not_modelled",
        keys=("recompute.recompute_modules", "offload.offload_modules"),
        applies=lambda config: any(
            module.startswith("gdp_") for module in (*config.recompute_modules, *config.offload.offload_modules)
        ),
        summary="The parts of gated delta products (gdp_in_proj, gdp_qkv).",
        message="gdp_in_proj and gdp_qkv are parts of a mixer that is not there",
        remedy="leave them out",
        source=_TRANSFORMER,
    ),
    Rule(
        id="N-op-fuser",
        severity="not_modelled",
        keys=("model.use_transformer_engine_op_fuser", "model.moe_paged_stash"),
        applies=lambda config: config.model.use_transformer_engine_op_fuser or config.model.moe_paged_stash,
        summary="Transformer Engine's fused operations, and paged stashing.",
        message="fused operations and paged stashing, which save other tensors, are not there",
        remedy="set use_transformer_engine_op_fuser and moe_paged_stash to false",
        source=_TRANSFORMER,
    ),
    Rule(
        id="N-ep-overlap",
        severity="not_modelled",
        keys=("parallel.overlap_moe_expert_parallel_comm", "model.moe_shared_expert_overlap"),
        applies=lambda config: (
            config.parallel.overlap_moe_expert_parallel_comm or config.model.moe_shared_expert_overlap
        ),
        summary="The experts' all-to-all or shared experts overlapped with other work.",
        message="overlapping the experts' communication, which keeps two microbatches at once, is not there",
        remedy="set overlap_moe_expert_parallel_comm and moe_shared_expert_overlap to false",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="N-mfsdp-pipeline",
        severity="not_modelled",
        keys=("parallel.use_megatron_fsdp", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: config.parallel.use_megatron_fsdp and config.parallel.pipeline_model_parallel_size > 1,
        summary="Megatron-FSDP in a pipeline.",
        message="use_megatron_fsdp in a pipeline, where several microbatches hold its units, is not there",
        remedy="set pipeline_model_parallel_size to 1",
        source=_MEGATRON_FSDP,
    ),
    Rule(
        id="N-mfsdp-fusion",
        severity="not_modelled",
        keys=("parallel.use_megatron_fsdp", "precision.gradient_accumulation_fusion"),
        applies=lambda config: config.parallel.use_megatron_fsdp and config.precision.gradient_accumulation_fusion,
        summary="Weight gradients written straight into the buckets of Megatron-FSDP.",
        message="gradient_accumulation_fusion into the buckets of use_megatron_fsdp is not there",
        remedy="set gradient_accumulation_fusion to false",
        source=_MEGATRON_FSDP,
    ),
    Rule(
        id="N-fsdp-instances",
        severity="not_modelled",
        keys=("parallel.use_megatron_fsdp", "optimizer.num_distributed_optimizer_instances"),
        applies=lambda config: (
            config.parallel.use_megatron_fsdp and config.optimizer.num_distributed_optimizer_instances > 1
        ),
        summary="Megatron-FSDP whose shards several instances replicate.",
        message="use_megatron_fsdp with several optimizer instances is not there",
        remedy="set num_distributed_optimizer_instances to 1",
        source=_MEGATRON_FSDP,
    ),
    Rule(
        id="N-mfsdp-double-buffer",
        severity="not_modelled",
        keys=("parallel.use_megatron_fsdp", "parallel.fsdp_double_buffer"),
        applies=lambda config: config.parallel.use_megatron_fsdp and config.parallel.fsdp_double_buffer,
        summary="Megatron-FSDP with two buffers for units that stay.",
        message="the persistent buffers of fsdp_double_buffer are not there",
        remedy="set fsdp_double_buffer to false",
        source=_MEGATRON_FSDP,
    ),
    Rule(
        id="N-mfsdp-main-params",
        severity="not_modelled",
        keys=("parallel.use_megatron_fsdp", "parallel.megatron_fsdp_main_params_dtype"),
        applies=lambda config: (
            config.parallel.use_megatron_fsdp and config.parallel.megatron_fsdp_main_params_dtype != "fp32"
        ),
        summary="Main weights of Megatron-FSDP that are not fp32.",
        message="main weights other than in fp32 are not there",
        remedy="set megatron_fsdp_main_params_dtype to fp32",
        source=_MEGATRON_FSDP,
    ),
    Rule(
        id="N-mfsdp-optimizer",
        severity="not_modelled",
        keys=(
            "parallel.use_megatron_fsdp",
            "optimizer.use_precision_aware_optimizer",
            "optimizer.optimizer_cpu_offload",
        ),
        applies=lambda config: (
            config.parallel.use_megatron_fsdp
            and (config.optimizer.use_precision_aware_optimizer or config.optimizer.optimizer_cpu_offload)
        ),
        summary="Megatron-FSDP with the precision-aware optimizer, or with one on the host.",
        message="use_megatron_fsdp with an optimizer that keeps masters of its own is not there",
        remedy="set use_precision_aware_optimizer and optimizer_cpu_offload to false",
        source="Megatron-Core optimizer/__init__.py",
    ),
    Rule(
        id="N-fsdp-experts",
        severity="not_modelled",
        keys=("parallel.use_torch_fsdp2", "parallel.expert_tensor_parallel_size"),
        applies=lambda config: (
            config.parallel.use_torch_fsdp2
            and config.model.num_moe_experts is not None
            and config.parallel.expert_tensor_parallel_size not in (None, config.parallel.tensor_model_parallel_size)
        ),
        summary="torch's FSDP2 with experts that have replicas of their own.",
        message="use_torch_fsdp2 shards experts over the ranks of dense layers, and these experts have other replicas",
        remedy="set expert_tensor_parallel_size to tensor_model_parallel_size",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py (one group for all parameters)",
    ),
    Rule(
        id="N-fsdp-alone",
        severity="not_modelled",
        keys=("parallel.use_torch_fsdp2", "parallel.data_parallel_size", "parallel.context_parallel_size"),
        applies=lambda config: (
            config.parallel.use_torch_fsdp2
            and config.parallel.data_parallel_size * config.parallel.context_parallel_size == 1
        ),
        summary="torch's FSDP2 on one rank.",
        message="use_torch_fsdp2 has nobody to share parameters with, since the data-parallel size is 1",
        remedy="set data_parallel_size above 1, or use_torch_fsdp2 to false",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py",
    ),
    Rule(
        id="N-offload-v1",
        severity="not_modelled",
        keys=("offload.nvte_cpu_offload_v1", "offload.cpu_offloading"),
        applies=lambda config: config.offload.nvte_cpu_offload_v1 and config.offload.cpu_offloading,
        summary="The first implementation of layer offloading, with its windows.",
        message="Transformer Engine's first implementation of layer offloading is not there",
        remedy="set nvte_cpu_offload_v1 to false",
        source="Transformer Engine pytorch/cpu_offload.py",
    ),
    Rule(
        id="N-offload-delta",
        severity="not_modelled",
        keys=("offload.delta_offload_bytes_across_pp_ranks",),
        applies=lambda config: (
            config.offload.fine_grained_activation_offloading and config.offload.delta_offload_bytes_across_pp_ranks > 0
        ),
        summary="Less offloading on later pipeline ranks.",
        message="offloading less on later pipeline ranks is not there",
        remedy="set delta_offload_bytes_across_pp_ranks to 0",
        source="Megatron-Core pipeline_parallel/fine_grained_activation_offload.py",
    ),
    Rule(
        id="N-coupled-decay",
        severity="not_modelled",
        keys=("optimizer.decoupled_weight_decay",),
        applies=lambda config: not config.optimizer.decoupled_weight_decay,
        summary="Weight decay as a part of the gradient.",
        message="Adam with weight decay in the gradient is not there",
        remedy="set decoupled_weight_decay to true",
        source="Megatron-Core optimizer/__init__.py",
    ),
    Rule(
        id="N-jitter",
        severity="not_modelled",
        keys=("model.moe_input_jitter_eps",),
        applies=lambda config: (
            config.model.num_moe_experts is not None and config.model.moe_input_jitter_eps is not None
        ),
        summary="Noise on the router's input.",
        message="noise on the router's input is not there",
        remedy="set moe_input_jitter_eps to null",
        source="Megatron-Core transformer/moe/router.py",
    ),
)
