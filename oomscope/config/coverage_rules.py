"""What Megatron-Core has and this version does not model: refused with the reason, never ignored in silence.

A row leaves this table in the change that models its key.
"""

from __future__ import annotations

from oomscope.config.rule import Rule
from oomscope.config.schema import Config

_MODEL_PARALLEL = "Megatron-Core model_parallel_config.py"
_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_MOE_MODULES = ("moe", "moe_act", "shared_experts")


def moe_modules(config: Config) -> list[str]:
    """Return the modules to recompute that only MoE layers have."""
    return [module for module in config.recompute_modules if module in _MOE_MODULES]


def _expert_tp(config: Config) -> int:
    return config.parallel.expert_tensor_parallel_size or config.parallel.tensor_model_parallel_size


COVERAGE_RULES: tuple[Rule, ...] = (
    Rule(
        id="N-vpp",
        severity="not_modelled",
        keys=("parallel.virtual_pipeline_model_parallel_size",),
        applies=lambda config: (config.parallel.virtual_pipeline_model_parallel_size or 1) > 1,
        summary="Interleaved pipelines: a rank holds one model chunk here.",
        message="the interleaved schedule, with several model chunks a rank, is not there",
        remedy="remove virtual_pipeline_model_parallel_size",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="N-cp",
        severity="not_modelled",
        keys=("parallel.context_parallel_size",),
        applies=lambda config: config.parallel.context_parallel_size > 1,
        summary="Context parallelism: the ring's key and value buffers are not modelled.",
        message="attention over several ranks of one sequence, with its ring buffers, is not there",
        remedy="set context_parallel_size to 1",
        source=_MODEL_PARALLEL,
    ),
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
        id="N-expert-bias",
        severity="not_modelled",
        keys=("model.add_bias_linear", "model.num_moe_experts"),
        applies=lambda config: config.model.num_moe_experts is not None and config.model.add_bias_linear,
        summary="Biases inside experts.",
        message="experts with biases are not there",
        remedy="set add_bias_linear to false (add_qkv_bias keeps those of the QKV projection)",
        source="Megatron-Core transformer/moe/experts.py",
    ),
    Rule(
        id="N-etp",
        severity="not_modelled",
        keys=(
            "parallel.expert_tensor_parallel_size",
            "parallel.tensor_model_parallel_size",
        ),
        applies=lambda config: config.model.num_moe_experts is not None and _expert_tp(config) > 1,
        summary="Tensor parallelism inside an expert (null means that of the dense layers).",
        message="splitting the matrices of an expert over ranks is not there",
        remedy="set expert_tensor_parallel_size to 1",
        source=_MODEL_PARALLEL,
    ),
    Rule(
        id="N-fp16",
        severity="not_modelled",
        keys=("precision.fp16",),
        applies=lambda config: config.precision.fp16 and not config.precision.bf16,
        summary="fp16: its loss scaling and gradient buffers are not modelled.",
        message="fp16 training, with loss scaling, is not there",
        remedy="set precision.bf16",
        source="Megatron-Core optimizer/grad_scaler.py",
    ),
    Rule(
        id="N-fine-grained-offload",
        severity="not_modelled",
        keys=("offload.fine_grained_activation_offloading",),
        applies=lambda config: config.offload.fine_grained_activation_offloading,
        summary="Offloading of the activations of single modules.",
        message="offloading the activations of single modules is not there",
        remedy="remove fine_grained_activation_offloading, or use cpu_offloading",
        source="Megatron-Core pipeline_parallel/fine_grained_activation_offload.py",
    ),
    Rule(
        id="N-optimizer-offload",
        severity="not_modelled",
        keys=("optimizer.optimizer_offload_fraction", "optimizer.optimizer_cpu_offload"),
        applies=lambda config: (
            config.optimizer.optimizer_cpu_offload and config.optimizer.optimizer_offload_fraction > 0
        ),
        summary="Optimizer states on the host.",
        message="an optimizer with states on the host is not there",
        remedy="remove optimizer_cpu_offload",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    Rule(
        id="N-overlap",
        severity="not_modelled",
        keys=("optimizer.overlap_param_gather",),
        applies=lambda config: config.optimizer.overlap_param_gather,
        summary="Parameters gathered during forward, bucket by bucket.",
        message="gathering parameters during forward is not there",
        remedy="remove overlap_param_gather",
        source="Megatron-Core distributed/distributed_data_parallel_config.py",
    ),
    Rule(
        id="N-recompute-moe",
        severity="not_modelled",
        keys=("recompute.recompute_modules",),
        applies=lambda config: config.model.num_moe_experts is not None and bool(moe_modules(config)),
        summary="Selective recomputation inside MoE layers.",
        message=lambda config: f"recomputing {', '.join(moe_modules(config))} is not there",
        remedy="recompute core_attn or layernorm, or whole layers",
        source=_TRANSFORMER,
    ),
)
