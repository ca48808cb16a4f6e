"""All options by topic. Each key of the configuration stands in exactly one row, or among the keys that move no memory,
that only this tool has, or that no version here can measure.
"""

from __future__ import annotations

from oomscope.probe.options.activations import OFFLOAD, RECOMPUTE
from oomscope.probe.options.experts import EXPERTS
from oomscope.probe.options.model import MODEL
from oomscope.probe.options.option import Option, keys
from oomscope.probe.options.parallel import PARALLEL
from oomscope.probe.options.training import ALLOCATOR, DATA, OPTIMIZER, PRECISION

TOPICS: dict[str, tuple[Option, ...]] = {
    "Recomputation": RECOMPUTE,
    "Offloading": OFFLOAD,
    "Parallelism": PARALLEL,
    "Optimizer": OPTIMIZER,
    "Precision": PRECISION,
    "Model": MODEL,
    "Experts": EXPERTS,
    "Data": DATA,
    "Allocator": ALLOCATOR,
}
"""Heading to its options, in the order of the page."""

NO_EFFECT: tuple[str, ...] = (
    *keys("model", "rotary_base layernorm_epsilon mtp_loss_scaling_factor"),
    *keys(
        "optimizer",
        "lr weight_decay adam_beta1 adam_beta2 adam_eps loss_scale initial_loss_scale min_loss_scale loss_scale_window "
        "hysteresis use_torch_optimizer_for_cpu_offload",
    ),
    *keys("precision", "fp8_margin fp8_amax_compute_algo"),
    *keys("offload", "cpu_offloading_weights cpu_offloading_double_buffering cpu_offloading_retain_pinned_cpu_buffers"),
)
"""Keys that move no byte on the device: numbers alone, and what upstream accepts and never reads (rules.md warns)."""

NOT_MODELLED: tuple[str, ...] = (
    *keys(
        "model",
        "use_transformer_engine_op_fuser experimental_attention_variant enable_mhc_connections "
        "moe_shared_expert_overlap moe_input_jitter_eps moe_paged_stash",
    ),
    *keys("parallel", "overlap_moe_expert_parallel_comm fsdp_double_buffer megatron_fsdp_main_params_dtype"),
    *keys("recompute", "mhc_recompute_layer_num num_microbatches_with_partial_activation_checkpoints"),
    *keys(
        "offload",
        "nvte_cpu_offload_v1 delta_offload_bytes_across_pp_ranks delay_offload_until_cuda_graph "
        "fine_grained_offloading_max_inflight_offloads",
    ),
    *keys(
        "cuda_graph",
        "cuda_graph_impl cuda_graph_modules cuda_graph_scope cuda_graph_warmup_steps nccl_graph_register",
    ),
    *keys("optimizer", "decoupled_weight_decay"),
    *keys("precision", "fp4 fp8_wgrad fp8_dot_product_attention fp8_multi_head_attention"),
)
"""Keys that the rules refuse, or that act beside a refused one alone."""

OWN_SECTIONS: tuple[str, ...] = ("device", "probe", "cost")
"""Sections that say what is measured and how, and are no options of a training run."""
OWN_KEYS: tuple[str, ...] = ()
"""The same, of other sections."""
