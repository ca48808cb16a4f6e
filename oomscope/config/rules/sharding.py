"""Rules of how gradients, parameters and optimizer states are sharded and overlapped over data-parallel ranks."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_DDP = "Megatron-Core distributed/distributed_data_parallel_config.py"
_OF_MEGATRON_FSDP = {
    "data_parallel_sharding_strategy": "no_shard",
    "suggested_communication_unit_size": None,
    "fsdp_double_buffer": False,
    "megatron_fsdp_main_params_dtype": "fp32",
    "megatron_fsdp_main_grads_dtype": "auto",
    "megatron_fsdp_grad_comm_dtype": "auto",
}
"""Keys of ``parallel`` to their defaults."""


def _fsdp2(config: Config) -> bool:
    return config.parallel.use_torch_fsdp2


def _replicas(config: Config) -> list[int]:
    """Return the data-parallel ranks of dense layers, and of experts where there are any."""
    parallel = config.parallel
    dense = parallel.data_parallel_size * parallel.context_parallel_size
    if config.model.num_moe_experts is None:
        return [dense]
    tp = parallel.tensor_model_parallel_size
    return [dense, dense * tp // ((parallel.expert_tensor_parallel_size or tp) * parallel.expert_model_parallel_size)]


def _overlaps_experts(config: Config) -> bool:
    return config.parallel.overlap_moe_expert_parallel_comm


def _recomputes_whole(config: Config) -> bool:
    recompute = config.recompute
    return (
        recompute.recompute_granularity == "full"
        or recompute.recompute_method is not None
        or recompute.recompute_num_layers is not None
        or "moe" in config.recompute_modules
    )


SHARDING_RULES: tuple[Rule, ...] = (
    Rule(
        id="R17",
        keys=("parallel.overlap_moe_expert_parallel_comm", "recompute.recompute_granularity"),
        applies=lambda config: _overlaps_experts(config) and _recomputes_whole(config),
        summary="overlap_moe_expert_parallel_comm excludes the recomputation of whole layers and of moe.",
        message="overlap_moe_expert_parallel_comm is set, and what it cuts in two is recomputed as one",
        remedy="recompute single modules other than moe, without recompute_method and recompute_num_layers",
        source=_CORE,
    ),
    Rule(
        id="S1",
        keys=("parallel.overlap_moe_expert_parallel_comm", "parallel.expert_model_parallel_size"),
        applies=lambda config: _overlaps_experts(config) and config.parallel.expert_model_parallel_size == 1,
        summary="overlap_moe_expert_parallel_comm needs expert parallelism.",
        message="overlap_moe_expert_parallel_comm has no all-to-all to overlap, since expert_model_parallel_size is 1",
        remedy="set expert_model_parallel_size above 1, or remove overlap_moe_expert_parallel_comm",
        source=_CORE,
    ),
    Rule(
        id="S2",
        keys=("parallel.overlap_moe_expert_parallel_comm", "parallel.virtual_pipeline_model_parallel_size"),
        applies=lambda config: (
            _overlaps_experts(config) and config.parallel.pipeline_model_parallel_size > 1 and config.model_chunks == 1
        ),
        summary="In a pipeline, overlap_moe_expert_parallel_comm needs virtual stages.",
        message="overlap_moe_expert_parallel_comm is set in a pipeline without virtual stages",
        remedy="set virtual_pipeline_model_parallel_size",
        source=_CORE,
    ),
    Rule(
        id="S13",
        keys=("parallel.overlap_moe_expert_parallel_comm", "model.moe_token_dispatcher_type"),
        applies=lambda config: _overlaps_experts(config) and config.model.moe_token_dispatcher_type == "allgather",  # noqa: S105
        summary="overlap_moe_expert_parallel_comm needs the all-to-all or flex dispatcher.",
        message="overlap_moe_expert_parallel_comm is set, and moe_token_dispatcher_type is allgather",
        remedy="set moe_token_dispatcher_type to alltoall",
        source=_CORE,
    ),
    Rule(
        id="S14",
        keys=("parallel.overlap_moe_expert_parallel_comm", "model.moe_shared_expert_overlap"),
        applies=lambda config: (
            _overlaps_experts(config)
            and (config.model.moe_shared_expert_overlap or not (config.precision.bf16 or config.precision.fp16))
        ),
        summary="overlap_moe_expert_parallel_comm excludes fp32 and moe_shared_expert_overlap.",
        message="overlap_moe_expert_parallel_comm is set with moe_shared_expert_overlap, or in fp32",
        remedy="set moe_shared_expert_overlap to false, and bf16",
        source=_CORE,
    ),
    Rule(
        id="S3",
        keys=("optimizer.overlap_param_gather", "optimizer.use_distributed_optimizer"),
        applies=lambda config: (
            config.optimizer.overlap_param_gather
            and not config.optimizer.use_distributed_optimizer
            and not config.parallel.use_megatron_fsdp
        ),
        summary="overlap_param_gather needs the distributed optimizer.",
        message="overlap_param_gather is set, and no optimizer shards parameters that could be gathered",
        remedy="set use_distributed_optimizer",
        source=_ARGS,
    ),
    Rule(
        id="S4",
        keys=("optimizer.overlap_param_gather", "optimizer.overlap_grad_reduce"),
        applies=lambda config: config.optimizer.overlap_param_gather and not config.optimizer.overlap_grad_reduce,
        summary="overlap_param_gather needs overlap_grad_reduce.",
        message="overlap_param_gather is set without overlap_grad_reduce, whose buckets it gathers",
        remedy="set overlap_grad_reduce",
        source=_ARGS,
    ),
    Rule(
        id="S20",
        keys=("optimizer.overlap_param_gather_with_optimizer_step", "optimizer.overlap_param_gather"),
        applies=lambda config: (
            config.optimizer.overlap_param_gather_with_optimizer_step and not config.optimizer.overlap_param_gather
        ),
        summary="overlap_param_gather_with_optimizer_step needs overlap_param_gather.",
        message="overlap_param_gather_with_optimizer_step is set without overlap_param_gather",
        remedy="set overlap_param_gather",
        source=_ARGS,
    ),
    Rule(
        id="S21",
        keys=(
            "optimizer.overlap_param_gather_with_optimizer_step",
            "parallel.virtual_pipeline_model_parallel_size",
        ),
        applies=lambda config: (
            config.optimizer.overlap_param_gather_with_optimizer_step
            and config.parallel.virtual_pipeline_model_parallel_size is None
            and config.parallel.num_layers_per_virtual_pipeline_stage is None
        ),
        summary="overlap_param_gather_with_optimizer_step needs virtual pipeline stages.",
        message="overlap_param_gather_with_optimizer_step is set, and no rank has a second model chunk to update",
        remedy="set virtual_pipeline_model_parallel_size",
        source=_ARGS,
    ),
    Rule(
        id="S18",
        keys=("optimizer.num_distributed_optimizer_instances", "optimizer.use_distributed_optimizer"),
        applies=lambda config: (
            config.optimizer.num_distributed_optimizer_instances > 1 and not config.optimizer.use_distributed_optimizer
        ),
        summary="Several instances of the distributed optimizer need the distributed optimizer.",
        message="num_distributed_optimizer_instances is above 1, and no optimizer is distributed",
        remedy="set use_distributed_optimizer, or num_distributed_optimizer_instances to 1",
        source="Megatron-Core distributed/distributed_data_parallel.py",
    ),
    Rule(
        id="S19",
        keys=("optimizer.num_distributed_optimizer_instances", "parallel.data_parallel_size"),
        applies=lambda config: any(
            replicas % config.optimizer.num_distributed_optimizer_instances for replicas in _replicas(config)
        ),
        summary="num_distributed_optimizer_instances divides the replicas of dense layers and those of experts.",
        message=lambda config: (
            f"{' and '.join(str(replicas) for replicas in _replicas(config))} replicas cannot be shared out evenly "
            f"among {config.optimizer.num_distributed_optimizer_instances} optimizer instances"
        ),
        remedy="let num_distributed_optimizer_instances divide DP * CP, and the replicas of experts",
        source="Megatron-Core parallel_state.py, initialize_model_parallel",
    ),
    Rule(
        id="S5",
        keys=("parallel.use_torch_fsdp2", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: _fsdp2(config) and config.parallel.pipeline_model_parallel_size > 1,
        summary="torch's FSDP2 and pipeline parallelism exclude each other.",
        message="use_torch_fsdp2 does not work with pipeline parallelism",
        remedy="set pipeline_model_parallel_size to 1",
        source=_ARGS,
    ),
    Rule(
        id="S6",
        keys=("parallel.use_torch_fsdp2", "parallel.expert_model_parallel_size"),
        applies=lambda config: _fsdp2(config) and config.parallel.expert_model_parallel_size > 1,
        summary="torch's FSDP2 and expert parallelism exclude each other.",
        message="use_torch_fsdp2 does not work with expert parallelism",
        remedy="set expert_model_parallel_size to 1",
        source=_ARGS,
    ),
    Rule(
        id="S7",
        keys=("parallel.use_torch_fsdp2", "optimizer.use_distributed_optimizer"),
        applies=lambda config: _fsdp2(config) and config.optimizer.use_distributed_optimizer,
        summary="torch's FSDP2 and the distributed optimizer exclude each other.",
        message="use_torch_fsdp2 already shards what use_distributed_optimizer would",
        remedy="set use_distributed_optimizer to false",
        source=_ARGS,
    ),
    Rule(
        id="S8",
        keys=("parallel.use_torch_fsdp2", "precision.gradient_accumulation_fusion"),
        applies=lambda config: _fsdp2(config) and config.precision.gradient_accumulation_fusion,
        summary="torch's FSDP2 and gradient_accumulation_fusion exclude each other.",
        message="use_torch_fsdp2 has no main gradients to accumulate into",
        remedy="set gradient_accumulation_fusion to false",
        source=_ARGS,
    ),
    Rule(
        id="S9",
        keys=("parallel.use_torch_fsdp2", "model.share_embeddings_and_output_weights"),
        applies=lambda config: _fsdp2(config) and config.model.share_embeddings_and_output_weights,
        summary="torch's FSDP2 needs an output layer of its own.",
        message="use_torch_fsdp2 cannot shard an embedding that the output layer shares",
        remedy="set share_embeddings_and_output_weights to false",
        source=_ARGS,
    ),
    Rule(
        id="S10",
        keys=("parallel.use_torch_fsdp2", "precision.fp16"),
        applies=lambda config: _fsdp2(config) and config.precision.fp16,
        summary="torch's FSDP2 and fp16 exclude each other.",
        message="use_torch_fsdp2 does not work with fp16",
        remedy="set bf16",
        source=_ARGS,
    ),
    Rule(
        id="S15",
        severity="warning",
        keys=("parallel.use_torch_fsdp2", "precision.grad_reduce_in_fp32"),
        applies=lambda config: _fsdp2(config) and config.precision.bf16 and config.precision.grad_reduce_in_fp32,
        summary="grad_reduce_in_fp32 does nothing with torch's FSDP2: gradients have the parameters' dtype.",
        message="grad_reduce_in_fp32 does nothing, since use_torch_fsdp2 reduces and accumulates gradients in bf16",
        remedy="set grad_reduce_in_fp32 to false",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py (no mixed-precision policy)",
    ),
    Rule(
        id="S16",
        severity="warning",
        keys=("parallel.use_torch_fsdp2", "optimizer.overlap_grad_reduce"),
        applies=lambda config: _fsdp2(config) and config.optimizer.overlap_grad_reduce,
        summary="overlap_grad_reduce does nothing with torch's FSDP2, which always overlaps.",
        message="overlap_grad_reduce does nothing, since use_torch_fsdp2 reduces each unit behind its backward anyway",
        remedy="set overlap_grad_reduce to false",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py",
    ),
    Rule(
        id="S17",
        severity="warning",
        keys=("parallel.torch_fsdp2_reshard_after_forward",),
        applies=lambda config: not _fsdp2(config) and not config.parallel.torch_fsdp2_reshard_after_forward,
        summary="torch_fsdp2_reshard_after_forward acts with torch's FSDP2 alone.",
        message="torch_fsdp2_reshard_after_forward is ignored, since use_torch_fsdp2 is false",
        remedy="remove torch_fsdp2_reshard_after_forward",
        source=_ARGS,
    ),
    Rule(
        id="S11",
        keys=("parallel.use_megatron_fsdp", "parallel.use_torch_fsdp2"),
        applies=lambda config: config.parallel.use_megatron_fsdp and _fsdp2(config),
        summary="Megatron-FSDP and torch's FSDP2 exclude each other.",
        message="use_megatron_fsdp and use_torch_fsdp2 are both set",
        remedy="remove one of them",
        source=_ARGS,
    ),
    Rule(
        id="S12",
        severity="warning",
        keys=("parallel.use_megatron_fsdp", *(f"parallel.{name}" for name in _OF_MEGATRON_FSDP)),
        applies=lambda config: (
            not config.parallel.use_megatron_fsdp
            and any(getattr(config.parallel, name) != default for name, default in _OF_MEGATRON_FSDP.items())
        ),
        summary="Keys that act with Megatron-FSDP alone.",
        message="keys of Megatron-FSDP are ignored, since use_megatron_fsdp is false",
        remedy="remove data_parallel_sharding_strategy and the other keys of Megatron-FSDP",
        source=_DDP,
    ),
    Rule(
        id="S22",
        severity="warning",
        keys=(
            "parallel.use_megatron_fsdp",
            "parallel.megatron_fsdp_main_grads_dtype",
            "precision.grad_reduce_in_fp32",
        ),
        applies=lambda config: (
            config.parallel.use_megatron_fsdp
            and config.parallel.megatron_fsdp_main_grads_dtype == "auto"
            and config.precision.bf16
            and config.precision.grad_reduce_in_fp32
        ),
        summary="grad_reduce_in_fp32 does nothing with Megatron-FSDP, which has a key of its own for that.",
        message="grad_reduce_in_fp32 does nothing, since use_megatron_fsdp accumulates gradients in bf16",
        remedy="set megatron_fsdp_main_grads_dtype to fp32, or grad_reduce_in_fp32 to false",
        source="Megatron-Core distributed/fsdp/mcore_fsdp_adapter.py",
    ),
)
