"""Rules of the optimizer: its number formats, its states on the host, and Muon."""

from __future__ import annotations

from oomscope.config.rules.rule import ARGS, Rule, error, warning

_CONFIG = "Megatron-Core optimizer/optimizer_config.py"
_OPTIMIZER = "Megatron-Core optimizer/__init__.py"
_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")

OPTIMIZER_RULES: tuple[Rule, ...] = (
    error(
        id="T1",
        keys=("optimizer.use_precision_aware_optimizer", "optimizer.optimizer"),
        applies=lambda c: c.optimizer.use_precision_aware_optimizer and c.optimizer.optimizer != "adam",
        message="use_precision_aware_optimizer is there for adam, not for {c.optimizer.optimizer}",
        remedy="set optimizer to adam, or remove use_precision_aware_optimizer",
        source=_CONFIG,
    ),
    error(
        id="T2",
        keys=("optimizer.use_precision_aware_optimizer", "optimizer.use_distributed_optimizer"),
        applies=lambda c: c.optimizer.use_precision_aware_optimizer and not c.optimizer.use_distributed_optimizer,
        message="use_precision_aware_optimizer needs the distributed optimizer",
        remedy="set use_distributed_optimizer",
        source=_OPTIMIZER,
    ),
    error(
        id="T3",
        keys=("optimizer.use_precision_aware_optimizer", *(f"optimizer.{name}" for name in _DTYPES)),
        applies=lambda c: (
            []
            if c.optimizer.use_precision_aware_optimizer
            else [k for k in _DTYPES if getattr(c.optimizer, k) != "fp32"]
        ),
        message="{found} below fp32 needs use_precision_aware_optimizer",
        remedy="set use_precision_aware_optimizer and use_distributed_optimizer",
        source=_CONFIG,
    ),
    error(
        id="T4",
        keys=("optimizer.main_grads_dtype", "precision.grad_reduce_in_fp32"),
        applies=lambda c: c.optimizer.main_grads_dtype != "fp32" and c.precision.grad_reduce_in_fp32,
        message="main_grads_dtype is below fp32, and grad_reduce_in_fp32 is set",
        remedy="set grad_reduce_in_fp32 to false",
        source=ARGS,
    ),
    error(
        id="T5",
        keys=("optimizer.min_loss_scale", "optimizer.initial_loss_scale"),
        applies=lambda c: c.optimizer.min_loss_scale > c.optimizer.initial_loss_scale,
        message="min_loss_scale is above initial_loss_scale",
        remedy="lower min_loss_scale",
        source="Megatron-Core optimizer/grad_scaler.py",
    ),
    warning(
        id="O10",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.optimizer_offload_fraction"),
        applies=lambda c: c.optimizer.optimizer_cpu_offload and c.optimizer.optimizer_offload_fraction == 0,
        message="optimizer_cpu_offload is set, and optimizer_offload_fraction is 0: nothing is offloaded",
        remedy="set optimizer_offload_fraction (it defaults to 0 here, and to 1 in Megatron-LM's launcher)",
        source=_CONFIG,
    ),
    error(
        id="O13",
        keys=("optimizer.decoupled_weight_decay", "optimizer.optimizer_cpu_offload"),
        applies=lambda c: c.optimizer.optimizer_cpu_offload and not c.optimizer.decoupled_weight_decay,
        message="optimizer_cpu_offload is set, and decoupled_weight_decay is false",
        remedy="set decoupled_weight_decay",
        source=_OPTIMIZER,
    ),
    error(
        id="O15",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.use_distributed_optimizer"),
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and (c.precision.bf16 or c.precision.fp16)
            and not c.optimizer.use_distributed_optimizer
        ),
        message="the first step ends in a KeyError: the fp32 masters take the place of parameters that are looked up",
        remedy="set use_distributed_optimizer",
        source=f"{_OPTIMIZER}, Float16OptimizerWithFloat16Params; optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    warning(
        id="O14",
        keys=("optimizer.optimizer_cpu_offload", "optimizer.use_precision_aware_optimizer"),
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
        keys=("optimizer.store_param_remainders", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"),
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.use_precision_aware_optimizer
            and (
                c.optimizer.optimizer_offload_fraction < 1
                or c.optimizer.exp_avg_dtype != "fp32"
                or c.optimizer.exp_avg_sq_dtype != "fp32"
            )
        ),
        message=(
            "the hybrid optimizer is made of plain Adams: what stays on the device has an fp32 master and "
            "fp32 moments, 12 bytes a parameter, whatever store_param_remainders, exp_avg_dtype and "
            "exp_avg_sq_dtype ask for"
        ),
        remedy="set optimizer_offload_fraction to 1 and leave the dtypes at fp32, or remove optimizer_cpu_offload",
        source=_OPTIMIZER,
    ),
    warning(
        id="O17",
        keys=("optimizer.optimizer_offload_fraction", "optimizer.use_distributed_optimizer"),
        applies=lambda c: (
            c.optimizer.optimizer_cpu_offload
            and c.optimizer.use_distributed_optimizer
            and 0 < c.optimizer.optimizer_offload_fraction < 1
            and c.parallel.data_parallel_size * c.parallel.context_parallel_size > 1
        ),
        message=(
            "each rank moves whole pieces of its own shard until the fraction is reached: another rank of the"
            " same stage may keep the states of one such piece more"
        ),
        remedy="probe other replicas as well, with --rank N",
        source="Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py",
    ),
    error(
        id="U1",
        keys=("optimizer.optimizer", "precision.fp16"),
        applies=lambda c: c.optimizer.optimizer == "muon" and c.precision.fp16,
        message="muon does not train in fp16",
        remedy="set bf16, or optimizer to adam",
        source="Megatron-Core optimizer/__init__.py, _get_megatron_emerging_optimizer",
    ),
    error(
        id="U2",
        keys=("optimizer.optimizer", "parallel.use_torch_fsdp2", "parallel.use_megatron_fsdp"),
        applies=lambda c: (
            c.optimizer.optimizer == "muon" and (c.parallel.use_torch_fsdp2 or c.parallel.use_megatron_fsdp)
        ),
        message="muon needs whole matrices, which FSDP cuts up",
        remedy="set use_torch_fsdp2 and use_megatron_fsdp to false, or optimizer to adam",
        source=ARGS,
    ),
)
