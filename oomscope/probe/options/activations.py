"""Options that recompute activations, or keep them and optimizer states on the host."""

from __future__ import annotations

from oomscope.probe.options.option import FINE, FULL, HOST, LLAMA, MOE, NO_SP, SELECTIVE, Option, keys

RECOMPUTE = (
    Option(
        keys("recompute", "recompute_granularity recompute_method recompute_num_layers"),
        "full keeps 2nh/S of each group of layers and one group's activations during backward: uniform cuts all layers "
        "into groups of N, block recomputes the first N layers one by one. Counted in each model chunk.",
        "The forward of what is recomputed once more: up to a third of the step.",
        LLAMA,
        (*FULL, "recompute.recompute_num_layers=1"),
    ),
    Option(
        keys("recompute", "recompute_modules"),
        "selective drops what the named modules save inside: core_attn 5as²b/t unfused and almost nothing with flash, "
        "mlp the outputs of fc1 and of the activation, and of the norm that Transformer Engine fuses into fc1; "
        "layernorm, moe_act and mla_up_proj drop their outputs too.",
        "The forward of the modules once more; moe repeats its all-to-all.",
        LLAMA,
        (SELECTIVE, "recompute.recompute_modules=[mlp]"),
    ),
    Option(
        keys("recompute", "distribute_saved_activations"),
        "With full recomputation and without sequence parallelism, each TP rank keeps 1/t of a group's input.",
        "An all-gather of each group's input in backward.",
        LLAMA,
        ("recompute.distribute_saved_activations=true",),
        given=(*FULL, "recompute.recompute_num_layers=1", NO_SP, "data.num_microbatches=1"),
    ),
    Option(
        keys("recompute", "moe_layer_recompute"),
        "An old name: selective recomputation of moe, which keeps the input of the MoE layer alone.",
        "Router, dispatch and experts once more, with their communication.",
        MOE,
        (SELECTIVE, "recompute.recompute_modules=[moe]"),
    ),
)


OFFLOAD = (
    Option(
        keys("offload", "cpu_offloading cpu_offloading_num_layers cpu_offloading_activations"),
        "Saved tensors of 256Ki elements or more of the first N layers go to pinned memory: L - N layers' activations "
        "stay. Not with pipelines or recomputation.",
        "Each byte crosses PCIe twice, beside computation; as many pinned bytes on the host.",
        LLAMA,
        ("offload.cpu_offloading=true", "offload.cpu_offloading_num_layers=2"),
    ),
    Option(
        keys("offload", "fine_grained_activation_offloading offload_modules"),
        "What the named modules save goes to the host, but for the last group of each name.",
        "Each byte crosses PCIe twice; pinned host memory.",
        LLAMA,
        (FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        keys("offload", "min_offloaded_tensor_size"),
        "Tensors of fewer elements (not bytes) stay on the device.",
        "Fewer and larger copies.",
        LLAMA,
        ("offload.min_offloaded_tensor_size=16777216",),
        given=(FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        keys("offload", "activation_offload_fraction"),
        "After the first iteration only the first such share of the groups leaves the device.",
        "That share of the traffic.",
        LLAMA,
        ("offload.activation_offload_fraction=0.5",),
        given=(FINE, "offload.offload_modules=[qkv_linear,core_attn,attn_proj]"),
    ),
    Option(
        keys("optimizer", "optimizer_cpu_offload optimizer_offload_fraction"),
        "Moments of that share of the parameters live on the host: 8/d bytes a parameter less. With the "
        "precision-aware optimizer it is all 10/d or 12/d of what moves, and what stays has an fp32 master weight. The "
        "fraction is 0 unless given (Megatron-LM's launcher: 1).",
        "The step runs on the CPU; 16/d bytes a parameter of host memory; gradients and parameters cross PCIe.",
        LLAMA,
        HOST,
    ),
    Option(
        keys("optimizer", "overlap_cpu_optimizer_d2h_h2d"),
        "The same bytes; copies of single parameters overlap with the step.",
        "One CPU optimizer a parameter.",
        LLAMA,
        ("optimizer.overlap_cpu_optimizer_d2h_h2d=true",),
        given=HOST,
    ),
)
