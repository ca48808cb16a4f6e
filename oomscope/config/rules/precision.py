"""Rules of the optimizer's number formats."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_OPTIMIZER = "Megatron-Core optimizer/optimizer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_FUSED_ADAM = "Transformer Engine pytorch/optimizers/fused_adam.py"
_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")


def _narrow_dtypes(config: Config) -> list[str]:
    return [name for name in _DTYPES if getattr(config.optimizer, name) != "fp32"]


PRECISION_RULES: tuple[Rule, ...] = (
    Rule(
        id="T1",
        keys=("optimizer.use_precision_aware_optimizer", "optimizer.optimizer"),
        applies=lambda config: config.optimizer.use_precision_aware_optimizer and config.optimizer.optimizer != "adam",
        summary="The precision-aware optimizer is Adam.",
        message=lambda config: f"use_precision_aware_optimizer is there for adam, not for {config.optimizer.optimizer}",
        remedy="set optimizer to adam, or remove use_precision_aware_optimizer",
        source=_OPTIMIZER,
    ),
    Rule(
        id="T2",
        keys=("optimizer.use_precision_aware_optimizer", "optimizer.use_distributed_optimizer"),
        applies=lambda config: (
            config.optimizer.use_precision_aware_optimizer and not config.optimizer.use_distributed_optimizer
        ),
        summary="The precision-aware optimizer is distributed.",
        message="use_precision_aware_optimizer needs the distributed optimizer",
        remedy="set use_distributed_optimizer",
        source="Megatron-Core optimizer/__init__.py",
    ),
    Rule(
        id="T3",
        keys=("optimizer.use_precision_aware_optimizer", *(f"optimizer.{name}" for name in _DTYPES)),
        applies=lambda config: not config.optimizer.use_precision_aware_optimizer and bool(_narrow_dtypes(config)),
        summary="Without the precision-aware optimizer all its tensors are fp32.",
        message=lambda config: f"{', '.join(_narrow_dtypes(config))} below fp32 needs use_precision_aware_optimizer",
        remedy="set use_precision_aware_optimizer and use_distributed_optimizer",
        source=_OPTIMIZER,
    ),
    Rule(
        id="T4",
        keys=("optimizer.main_grads_dtype", "precision.grad_reduce_in_fp32"),
        applies=lambda config: config.optimizer.main_grads_dtype != "fp32" and config.precision.grad_reduce_in_fp32,
        summary="Gradients that are reduced in fp32 are kept in fp32.",
        message="main_grads_dtype is below fp32, and grad_reduce_in_fp32 is set",
        remedy="set grad_reduce_in_fp32 to false",
        source=_ARGS,
    ),
    Rule(
        id="T5",
        keys=("optimizer.min_loss_scale", "optimizer.initial_loss_scale"),
        applies=lambda config: config.optimizer.min_loss_scale > config.optimizer.initial_loss_scale,
        summary="min_loss_scale is at most initial_loss_scale.",
        message="min_loss_scale is above initial_loss_scale",
        remedy="lower min_loss_scale",
        source="Megatron-Core optimizer/grad_scaler.py",
    ),
    Rule(
        id="N-narrow-states",
        severity="not_modelled",
        keys=("optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype", "optimizer.main_params_dtype"),
        applies=lambda config: (
            "fp8" in {config.optimizer.exp_avg_dtype, config.optimizer.exp_avg_sq_dtype}
            or config.optimizer.main_params_dtype != "fp32"
        ),
        summary="Moments in fp8, and master weights in fp16.",
        message="moments in fp8 and master weights in fp16, each with a scale, are not there",
        remedy="keep moments in bf16, fp16 or fp32, and master weights in fp32",
        source=_FUSED_ADAM,
    ),
)
