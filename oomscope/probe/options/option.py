"""A row of ``docs/options.md``: an option, what it does to memory, what it costs, and an example to be measured."""

from __future__ import annotations

from dataclasses import dataclass

SMALL: dict[str, tuple[str, ...]] = {
    "llama3-8b": ("model.num_layers=4", "data.num_microbatches=2"),
    "qwen3-30b-a3b-shaped": ("model.num_layers=2", "data.num_microbatches=2"),
    "gpt-tiny": (),
}
"""Presets that examples build on, and what makes them quick to probe."""

LLAMA, MOE, TINY = SMALL


@dataclass(frozen=True)
class Option:
    """One option, or several keys that act together."""

    keys: tuple[str, ...]
    memory: str
    """Its effect on the memory of a rank; symbols as in docs/options.md."""
    cost: str
    """What is paid for it in time, traffic or host memory."""
    preset: str
    """One of ``SMALL``."""
    example: tuple[str, ...]
    """Overrides that show the effect."""
    given: tuple[str, ...] = ()
    """Overrides that hold before and after."""


def keys(section: str, names: str) -> tuple[str, ...]:
    """Return the dotted keys of ``names`` in ``section``."""
    return tuple(f"{section}.{name}" for name in names.split())


SELECTIVE = "recompute.recompute_granularity=selective"
FULL = ("recompute.recompute_granularity=full", "recompute.recompute_method=uniform")
UNFUSED = "model.attention_backend=unfused"
SHORT = "data.seq_length=2048"
NO_SP = "parallel.sequence_parallel=false"
ONE = ("parallel.tensor_model_parallel_size=1", NO_SP)
PIPELINE = ("parallel.pipeline_model_parallel_size=2", "data.num_microbatches=4")
DENSE_OPTIMIZER = "optimizer.use_distributed_optimizer=false"
HOST = ("optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0")
FINE = "offload.fine_grained_activation_offloading=true"
AWARE = "optimizer.use_precision_aware_optimizer=true"
FSDP2 = (*ONE, DENSE_OPTIMIZER, "parallel.data_parallel_size=8", "precision.grad_reduce_in_fp32=false")
TENSORWISE = ("precision.fp8=hybrid", "precision.fp8_recipe=tensorwise")
MFSDP = (*ONE, "parallel.data_parallel_size=8", "parallel.use_megatron_fsdp=true")
"""Megatron-FSDP; no_shard unless told."""
MFSDP3 = (*MFSDP, "parallel.data_parallel_sharding_strategy=optim_grads_params")
LATENT = (
    "model.multi_latent_attention=true",
    "model.num_query_groups=",
    "model.qk_layernorm=false",
    "model.kv_channels=",
)
