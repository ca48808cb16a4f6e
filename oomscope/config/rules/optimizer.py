"""Rules of the optimizer: how states, gradients and parameters are sharded, their formats, what lies on the host."""

from __future__ import annotations

from oomscope.config.rules.rule import ARGS, Rule, conflict, error, needs, warning
from oomscope.config.schema import Config


def _uneven_replicas(config: Config) -> str | None:
    """Return the replicas of dense layers, and of experts, where the optimizer instances cannot share them evenly."""
    parallel, tp = config.parallel, config.parallel.tensor_model_parallel_size
    dense = parallel.data_parallel_size * parallel.context_parallel_size
    replicas = [dense]
    if config.model.num_moe_experts is not None:
        sharing = (parallel.expert_tensor_parallel_size or tp) * parallel.expert_model_parallel_size
        replicas.append(dense * tp // sharing)
    uneven = any(number % config.optimizer.num_distributed_optimizer_instances for number in replicas)
    return " and ".join(map(str, replicas)) if uneven else None


SHARDING_RULES: tuple[Rule, ...] = (
    error(
        id="S3",
        keys="optimizer.overlap_param_gather optimizer.use_distributed_optimizer",
        applies=lambda c: (
            c.optimizer.overlap_param_gather
            and not c.optimizer.use_distributed_optimizer
            and not c.parallel.use_megatron_fsdp
        ),
        message="overlap_param_gather is set, and no optimizer shards parameters that could be gathered",
        remedy="set use_distributed_optimizer",
        source=ARGS,
    ),
    needs(
        "S4",
        "optimizer.overlap_param_gather",
        "optimizer.overlap_grad_reduce",
        ARGS,
        why="whose buckets it gathers",
    ),
    needs("S20", "optimizer.overlap_param_gather_with_optimizer_step", "optimizer.overlap_param_gather", ARGS),
    error(
        id="S21",
        keys="optimizer.overlap_param_gather_with_optimizer_step parallel.virtual_pipeline_model_parallel_size",
        applies=lambda c: (
            c.optimizer.overlap_param_gather_with_optimizer_step
            and c.parallel.virtual_pipeline_model_parallel_size is None
            and c.parallel.num_layers_per_virtual_pipeline_stage is None
        ),
        message="overlap_param_gather_with_optimizer_step is set, and no rank has a second model chunk to update",
        remedy="set virtual_pipeline_model_parallel_size",
        source=ARGS,
    ),
    needs(
        "S18",
        "optimizer.num_distributed_optimizer_instances",
        "optimizer.use_distributed_optimizer",
        "Megatron-Core distributed/distributed_data_parallel.py",
    ),
    error(
        id="S19",
        keys="optimizer.num_distributed_optimizer_instances parallel.data_parallel_size",
        applies=_uneven_replicas,
        message="{found} replicas cannot be shared out evenly among "
        "{c.optimizer.num_distributed_optimizer_instances} optimizer instances",
        remedy="let num_distributed_optimizer_instances divide DP * CP, and the replicas of experts",
        source="Megatron-Core parallel_state.py, initialize_model_parallel",
    ),
    conflict("S5", "parallel.use_torch_fsdp2", "parallel.pipeline_model_parallel_size", ARGS),
    conflict("S6", "parallel.use_torch_fsdp2", "parallel.expert_model_parallel_size", ARGS),
    conflict(
        "S7",
        "parallel.use_torch_fsdp2",
        "optimizer.use_distributed_optimizer",
        ARGS,
        why="which would shard the same",
    ),
    conflict(
        "S8",
        "parallel.use_torch_fsdp2",
        "precision.gradient_accumulation_fusion",
        ARGS,
        why="which needs main gradients to accumulate into",
    ),
    conflict(
        "S9",
        "parallel.use_torch_fsdp2",
        "model.share_embeddings_and_output_weights=true",
        ARGS,
        remedy="set share_embeddings_and_output_weights to false",
    ),
    conflict("S10", "parallel.use_torch_fsdp2", "precision.fp16", ARGS, remedy="set bf16"),
    warning(
        id="S15",
        keys="parallel.use_torch_fsdp2 precision.grad_reduce_in_fp32",
        applies=lambda c: c.parallel.use_torch_fsdp2 and c.precision.bf16 and c.precision.grad_reduce_in_fp32,
        message="grad_reduce_in_fp32 does nothing, since use_torch_fsdp2 reduces and accumulates gradients in bf16",
        remedy="set grad_reduce_in_fp32 to false",
        source="Megatron-Core distributed/torch_fully_sharded_data_parallel.py (no mixed-precision policy)",
    ),
    conflict("S11", "parallel.use_megatron_fsdp", "parallel.use_torch_fsdp2", ARGS),
    warning(
        id="S22",
        keys="parallel.use_megatron_fsdp parallel.megatron_fsdp_main_grads_dtype precision.grad_reduce_in_fp32",
        applies=lambda c: (
            c.parallel.use_megatron_fsdp
            and c.parallel.megatron_fsdp_main_grads_dtype == "auto"
            and c.precision.bf16
            and c.precision.grad_reduce_in_fp32
        ),
        message="grad_reduce_in_fp32 does nothing, since use_megatron_fsdp accumulates gradients in bf16",
        remedy="set megatron_fsdp_main_grads_dtype to fp32, or grad_reduce_in_fp32 to false",
        source="Megatron-Core distributed/fsdp/mcore_fsdp_adapter.py",
    ),
    warning(
        id="D1",
        keys="optimizer.use_distributed_optimizer parallel.data_parallel_size",
        applies=lambda c: (
            c.optimizer.use_distributed_optimizer
            and c.parallel.data_parallel_size * c.parallel.context_parallel_size == 1
            and not (c.optimizer.optimizer_cpu_offload and (c.precision.bf16 or c.precision.fp16))  # rule O15
        ),
        message="use_distributed_optimizer shards nothing over one replica",
        remedy="set data_parallel_size above 1",
        source="Megatron-Core optimizer/distrib_optimizer.py",
    ),
)


_CONFIG = "Megatron-Core optimizer/optimizer_config.py"
_OPTIMIZER = "Megatron-Core optimizer/__init__.py"
_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")

OPTIMIZER_RULES: tuple[Rule, ...] = (
    conflict("T1", "optimizer.use_precision_aware_optimizer", "optimizer.optimizer", _CONFIG),
    needs("T2", "optimizer.use_precision_aware_optimizer", "optimizer.use_distributed_optimizer", _OPTIMIZER),
    error(
        id="T3",
        keys=" ".join(["optimizer.use_precision_aware_optimizer", *(f"optimizer.{name}" for name in _DTYPES)]),
        applies=lambda c: (
            []
            if c.optimizer.use_precision_aware_optimizer
            else [k for k in _DTYPES if getattr(c.optimizer, k) != "fp32"]
        ),
        message="{found} below fp32 needs use_precision_aware_optimizer",
        remedy="set use_precision_aware_optimizer and use_distributed_optimizer",
        source=_CONFIG,
    ),
    conflict(
        "T4",
        "optimizer.main_grads_dtype",
        "precision.grad_reduce_in_fp32=true",
        ARGS,
        remedy="set grad_reduce_in_fp32 to false",
    ),
    error(
        id="T5",
        keys="optimizer.min_loss_scale optimizer.initial_loss_scale",
        applies=lambda c: c.optimizer.min_loss_scale > c.optimizer.initial_loss_scale,
        message="min_loss_scale is above initial_loss_scale",
        remedy="lower min_loss_scale",
        source="Megatron-Core optimizer/grad_scaler.py",
    ),
    warning(
        id="O10",
        keys="optimizer.optimizer_cpu_offload optimizer.optimizer_offload_fraction",
        applies=lambda c: c.optimizer.optimizer_cpu_offload and c.optimizer.optimizer_offload_fraction == 0,
        message="optimizer_cpu_offload is set, and optimizer_offload_fraction is 0: nothing is offloaded",
        remedy="set optimizer_offload_fraction (it defaults to 0 here, and to 1 in Megatron-LM's launcher)",
        source=_CONFIG,
    ),
    conflict("O13", "optimizer.optimizer_cpu_offload", "optimizer.decoupled_weight_decay=false", _OPTIMIZER),
    error(
        id="O15",
        keys="optimizer.optimizer_cpu_offload optimizer.use_distributed_optimizer",
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and (c.precision.bf16 or c.precision.fp16)
            and not c.optimizer.use_distributed_optimizer
        ),
        message="the first step ends in a KeyError: the fp32 masters replace parameters that are looked up",
        remedy="set use_distributed_optimizer",
        source=f"{_OPTIMIZER}, Float16OptimizerWithFloat16Params; optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    warning(
        id="O14",
        keys="optimizer.optimizer_cpu_offload optimizer.use_precision_aware_optimizer",
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.optimizer_offload_fraction > 0
            and not c.optimizer.use_precision_aware_optimizer
        ),
        message="the moments go to the host, and the fp32 masters stay: 8 of 12 bytes a parameter",
        remedy="set use_precision_aware_optimizer (Megatron-LM's launcher requires it, Megatron-Bridge does not)",
        source="Megatron-LM training/arguments.py; Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    warning(
        id="O18",
        keys="optimizer.store_param_remainders optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype",
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.use_precision_aware_optimizer
            and (
                c.optimizer.optimizer_offload_fraction < 1
                or c.optimizer.exp_avg_dtype != "fp32"
                or c.optimizer.exp_avg_sq_dtype != "fp32"
            )
        ),
        message="the hybrid optimizer is made of plain Adams: what stays on the device has an fp32 master and "
        "fp32 moments, 12 bytes a parameter, whatever store_param_remainders, exp_avg_dtype and "
        "exp_avg_sq_dtype ask for",
        remedy="set optimizer_offload_fraction to 1 and leave the dtypes at fp32, or remove optimizer_cpu_offload",
        source=_OPTIMIZER,
    ),
    warning(
        id="O17",
        keys="optimizer.optimizer_offload_fraction optimizer.use_distributed_optimizer",
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.use_distributed_optimizer
            and 0 < c.optimizer.optimizer_offload_fraction < 1
            and c.parallel.data_parallel_size * c.parallel.context_parallel_size > 1
        ),
        message="each rank moves whole pieces of its own shard until the fraction is reached: another rank of the"
        " same stage may keep the states of one such piece more",
        remedy="probe other replicas as well, with --rank N",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    conflict(
        "U1",
        "optimizer.optimizer=muon",
        "precision.fp16",
        "Megatron-Core optimizer/__init__.py, _get_megatron_emerging_optimizer",
        remedy="set bf16, or optimizer to adam",
    ),
    conflict(
        "U2",
        "optimizer.optimizer=muon",
        "parallel.use_torch_fsdp2 parallel.use_megatron_fsdp",
        ARGS,
        why="which splits the matrices that it needs whole",
    ),
)
