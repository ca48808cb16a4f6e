"""Rules of offloading activations to the host: by layers, which upstream checks first, and by modules, which it checks
after recomputation.
"""

from __future__ import annotations

from oomscope.config.rules.rule import ARGS, TRANSFORMER, Rule, conflict, error, needs, warning
from oomscope.config.schema import Config

_TE = "Transformer Engine pytorch/cpu_offload.py"
_PARTS_OF_EXPERTS = ("expert_fc1", "moe_act", "fused_group_mlp")


def _on(config: Config) -> bool:
    return config.offload.fine_grained_activation_offloading


def _offloads(config: Config, module: str) -> bool:
    return _on(config) and module in config.offload.offload_modules


def _absent_modules(config: Config) -> list[str]:
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


def _would_offload_weights(config: Config) -> bool:
    version = config.te_version
    return _on(config) and version is not None and version >= (2, 10) and not config.offload.nvte_cpu_offload_v1


LAYER_OFFLOAD_RULES: tuple[Rule, ...] = (
    error(
        id="O1",
        keys="offload.cpu_offloading_num_layers model.num_layers",
        applies=lambda c: (
            c.offload.cpu_offloading and not 0 <= c.offload.cpu_offloading_num_layers < c.model.num_layers
        ),
        message="{c.offload.cpu_offloading_num_layers} of {c.model.num_layers} layers cannot be offloaded",
        remedy="set cpu_offloading_num_layers to between 0 and num_layers - 1",
        source=TRANSFORMER,
    ),
    conflict("O2", "offload.cpu_offloading", "parallel.pipeline_model_parallel_size", TRANSFORMER),
    conflict("R21", "offload.cpu_offloading", "recompute.recompute_granularity", f"{TRANSFORMER} (before R1)"),
    conflict("O3", "offload.cpu_offloading", "offload.fine_grained_activation_offloading", TRANSFORMER),
    error(
        id="O4",
        keys="offload.cpu_offloading_activations offload.cpu_offloading",
        applies=lambda c: (
            c.offload.cpu_offloading
            and not c.offload.cpu_offloading_activations
            and not c.offload.cpu_offloading_weights
        ),
        message="cpu_offloading is to offload neither activations nor weights",
        remedy="set cpu_offloading_activations, or remove cpu_offloading",
        source=_TE,
    ),
    warning(
        id="O8",
        keys="offload.cpu_offloading_num_layers model.num_layers",
        applies=lambda c: (
            c.offload.cpu_offloading
            and c.offload.cpu_offloading_num_layers > 0
            and c.offload.cpu_offloading_num_layers == c.model.num_layers - 1
        ),
        message="offloading {c.offload.cpu_offloading_num_layers} of {c.model.num_layers} layers leaves none to "
        "overlap the copies with",
        remedy="offload fewer layers",
        source=_TE,
    ),
)


FINE_GRAINED_RULES: tuple[Rule, ...] = (
    needs("F1", "offload.fine_grained_activation_offloading", "offload.offload_modules", TRANSFORMER),
    error(
        id="F2",
        keys="offload.offload_modules",
        applies=lambda c: _offloads(c, "attn_proj") and not _offloads(c, "core_attn"),
        message="the input of attn_proj is the output of core_attn, whose backward needs it on the device",
        remedy="add core_attn to offload_modules, or leave attn_proj out",
        source=TRANSFORMER,
    ),
    error(
        id="F4",
        keys="offload.offload_modules recompute.recompute_modules",
        applies=lambda c: (
            _on(c) and "moe" in c.recompute_modules and [m for m in _PARTS_OF_EXPERTS if m in c.offload.offload_modules]
        ),
        message="moe is recomputed, and {found} inside it offloaded",
        remedy="leave moe out of recompute_modules, or those out of offload_modules",
        source=TRANSFORMER,
    ),
    needs(
        "F7",
        "offload.fine_grained_activation_offloading",
        "model.transformer_impl=transformer_engine",
        f"{ARGS}; Megatron-Bridge training/config.py",
    ),
    error(
        id="F8",
        keys="offload.nvte_cpu_offload_v1 model.transformer_engine_version",
        applies=_would_offload_weights,
        message="Transformer Engine 2.10 and later would offload weights as well",
        remedy="set nvte_cpu_offload_v1 to true, as NVTE_CPU_OFFLOAD_V1=1 does",
        source=ARGS,
    ),
    warning(
        id="F16",
        keys="offload.offload_modules model.num_moe_experts",
        applies=lambda c: _on(c) and c.model.transformer_impl == "transformer_engine" and _absent_modules(c),
        message="no layer has {found}: nothing of it is offloaded",
        remedy="leave it out of offload_modules",
        source="Megatron-Core transformer/transformer_layer.py",
    ),
)
