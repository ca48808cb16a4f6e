"""Rules of offloading the activations of single modules, which upstream checks after those of recomputation."""

from __future__ import annotations

import re

from oomscope.config.rules.rule import Rule
from oomscope.config.rules.saved_tensors import largest_of_module
from oomscope.config.schema import Config, OffloadConfig

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_MOE_PARTS = ("expert_fc1", "moe_act", "fused_group_mlp")


def _on(config: Config) -> bool:
    return config.offload.fine_grained_activation_offloading


def _offloads(config: Config, module: str) -> bool:
    return _on(config) and module in config.offload.offload_modules


def _experts_parts(config: Config) -> list[str]:
    return [module for module in _MOE_PARTS if _offloads(config, module)]


def absent_modules(config: Config) -> list[str]:
    """Return the modules to offload that no layer of the model has.

    With the Transformer Engine layers a norm before a single linear layer is a part of it; the experts' parts are
    those of the grouped product.
    """
    model = config.model
    moe = model.num_moe_experts is not None
    absent = set() if model.multi_latent_attention else {"attn_norm"}
    absent |= set() if moe else {"mlp_norm"}
    absent |= set() if moe and model.moe_grouped_gemm else {"expert_fc1", "moe_act"}
    return [module for module in config.offload.offload_modules if module in absent]


def _details_without_switch(config: Config) -> bool:
    offload = config.offload
    return not _on(config) and (
        bool(offload.offload_modules)
        or offload.activation_offload_fraction < 1
        or offload.delta_offload_bytes_across_pp_ranks != 0
        or offload.fine_grained_offloading_max_inflight_offloads is not None
        or offload.min_offloaded_tensor_size != OffloadConfig().min_offloaded_tensor_size
    )


def _largest_saved(config: Config) -> int:
    return max((largest_of_module(config, module) for module in config.offload.offload_modules), default=0)


def te_version(config: Config) -> tuple[int, ...] | None:
    """Return major and minor version of Transformer Engine; None where none is given that has numbers."""
    numbers = re.match(r"(\d+)\.(\d+)", config.model.transformer_engine_version or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def _would_offload_weights(config: Config) -> bool:
    version = te_version(config)
    return _on(config) and version is not None and version >= (2, 10) and not config.offload.nvte_cpu_offload_v1


FINE_GRAINED_RULES: tuple[Rule, ...] = (
    Rule(
        id="F1",
        keys=("offload.offload_modules", "offload.fine_grained_activation_offloading"),
        applies=lambda config: _on(config) and not config.offload.offload_modules,
        summary="Fine-grained offloading names the modules to offload.",
        message="fine_grained_activation_offloading is set, and offload_modules is empty",
        remedy="name modules in offload_modules",
        source=_CORE,
    ),
    Rule(
        id="F2",
        keys=("offload.offload_modules",),
        applies=lambda config: _offloads(config, "attn_proj") and not _offloads(config, "core_attn"),
        summary="attn_proj is offloaded together with core_attn.",
        message="the input of attn_proj is the output of core_attn, whose backward needs it on the device",
        remedy="add core_attn to offload_modules, or leave attn_proj out",
        source=_CORE,
    ),
    Rule(
        id="F3",
        keys=("offload.offload_modules", "recompute.recompute_modules"),
        applies=lambda config: _offloads(config, "gdp_qkv") and "gdp_in_proj" in config.recompute_modules,
        summary="Offloading gdp_qkv and recomputing gdp_in_proj exclude each other.",
        message="recomputing gdp_in_proj discards what gdp_qkv would offload",
        remedy="leave one of them out",
        source=_CORE,
    ),
    Rule(
        id="F4",
        keys=("offload.offload_modules", "recompute.recompute_modules"),
        applies=lambda config: bool(_experts_parts(config)) and "moe" in config.recompute_modules,
        summary="Nothing inside a recomputed moe is offloaded.",
        message=lambda config: f"moe is recomputed, and {', '.join(_experts_parts(config))} inside it offloaded",
        remedy="leave moe out of recompute_modules, or those out of offload_modules",
        source=_CORE,
    ),
    Rule(
        id="F5",
        keys=("offload.delta_offload_bytes_across_pp_ranks",),
        applies=lambda config: _on(config) and config.offload.delta_offload_bytes_across_pp_ranks < 0,
        summary="delta_offload_bytes_across_pp_ranks is not negative.",
        message=lambda config: (
            f"delta_offload_bytes_across_pp_ranks is {config.offload.delta_offload_bytes_across_pp_ranks}"
        ),
        remedy="set it to 0 or more",
        source=_CORE,
    ),
    Rule(
        id="F6",
        keys=("offload.offload_modules", "model.use_transformer_engine_op_fuser"),
        applies=lambda config: (
            _offloads(config, "fused_group_mlp")
            and (
                not config.model.use_transformer_engine_op_fuser
                or _offloads(config, "expert_fc1")
                or _offloads(config, "moe_act")
            )
        ),
        summary="fused_group_mlp needs the fused operations, and stands for expert_fc1 and moe_act.",
        message="fused_group_mlp is offloaded without use_transformer_engine_op_fuser, or beside a part of it",
        remedy="offload expert_fc1 and moe_act instead",
        source=_CORE,
    ),
    Rule(
        id="F7",
        keys=("model.transformer_impl", "offload.fine_grained_activation_offloading"),
        applies=lambda config: _on(config) and config.model.transformer_impl != "transformer_engine",
        summary="Fine-grained offloading needs the Transformer Engine layers.",
        message="the local layers cannot offload the activations of single modules",
        remedy="set transformer_impl to transformer_engine",
        source=f"{_ARGS}; Megatron-Bridge training/config.py",
    ),
    Rule(
        id="F8",
        keys=("offload.nvte_cpu_offload_v1", "model.transformer_engine_version"),
        applies=_would_offload_weights,
        summary="Fine-grained offloading with Transformer Engine 2.10 or later needs NVTE_CPU_OFFLOAD_V1=1.",
        message="Transformer Engine 2.10 and later would offload weights as well",
        remedy="set nvte_cpu_offload_v1 to true, as NVTE_CPU_OFFLOAD_V1=1 does",
        source=_ARGS,
    ),
    Rule(
        id="F13",
        keys=("model.moe_paged_stash", "offload.cpu_offloading", "offload.offload_modules"),
        applies=lambda config: (
            config.model.moe_paged_stash and (config.offload.cpu_offloading or bool(_experts_parts(config)))
        ),
        summary="moe_paged_stash excludes layer offloading and the offloading of parts of experts.",
        message="moe_paged_stash already takes what is to be offloaded",
        remedy="remove moe_paged_stash, or the offloading",
        source=_CORE,
    ),
    Rule(
        id="F14",
        severity="warning",
        keys=(
            "offload.offload_modules",
            "offload.activation_offload_fraction",
            "offload.delta_offload_bytes_across_pp_ranks",
            "offload.fine_grained_offloading_max_inflight_offloads",
            "offload.min_offloaded_tensor_size",
        ),
        applies=_details_without_switch,
        summary="The details of fine-grained offloading act with fine_grained_activation_offloading alone.",
        message="no module is offloaded, since fine_grained_activation_offloading is false",
        remedy="set fine_grained_activation_offloading",
        source=_CORE,
    ),
    Rule(
        id="F15",
        severity="warning",
        keys=("offload.activation_offload_fraction",),
        applies=lambda config: _on(config) and config.offload.activation_offload_fraction == 0,
        summary="Fine-grained offloading of the fraction 0 offloads nothing.",
        message="fine_grained_activation_offloading is set, and activation_offload_fraction is 0: nothing is offloaded",
        remedy="set activation_offload_fraction above 0",
        source="Megatron-Core pipeline_parallel/fine_grained_activation_offload.py",
    ),
    Rule(
        id="F17",
        severity="warning",
        keys=("offload.min_offloaded_tensor_size", "offload.offload_modules"),
        applies=lambda config: _on(config) and config.offload.min_offloaded_tensor_size > _largest_saved(config) > 0,
        summary="Tensors of fewer elements than min_offloaded_tensor_size stay on the device.",
        message=lambda config: (
            f"no tensor of {', '.join(config.offload.offload_modules)} has more than {_largest_saved(config):,} "
            "elements: nothing is offloaded"
        ),
        remedy="set min_offloaded_tensor_size (elements, not bytes) lower",
        source=_CORE,
    ),
    Rule(
        id="F16",
        severity="warning",
        keys=("offload.offload_modules", "model.num_moe_experts"),
        applies=lambda config: (
            _on(config) and config.model.transformer_impl == "transformer_engine" and bool(absent_modules(config))
        ),
        summary="Offloading a module that no layer has does nothing: a fused norm is a part of the layer behind it.",
        message=lambda config: f"no layer has {', '.join(absent_modules(config))}: nothing of it is offloaded",
        remedy="leave it out of offload_modules",
        source="Megatron-Core transformer/transformer_layer.py",
    ),
)
