"""Rules of CUDA graphs: what a captured part of the model excludes (R22 in parts, in the order of upstream's checks).

A configuration that keeps them all is then refused as not modelled (``coverage_rules.py``).
"""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_CORE = "Megatron-Core transformer/transformer_config.py"
_ARGS = "Megatron-LM training/arguments.py"
_MOE_PARTS = frozenset({"expert_fc1", "moe_act", "fused_group_mlp"})


def _impl(config: Config) -> str:
    return config.cuda_graph.cuda_graph_impl


def _by_layer(config: Config) -> bool:
    return _impl(config) in {"local", "transformer_engine"}


def _names(config: Config, module: str) -> bool:
    """Whether ``module`` is named in cuda_graph_modules, of graphs that go layer by layer."""
    return _by_layer(config) and module in config.cuda_graph.cuda_graph_modules


def _captures(config: Config, module: str) -> bool:
    """Whether ``module`` is inside a graph, also for being inside a whole one."""
    if _impl(config) == "none":
        return False
    whole = _impl(config) == "full_iteration" or not config.cuda_graph.cuda_graph_modules
    return whole or module in config.cuda_graph.cuda_graph_modules


def _offloads_with_graph(config: Config) -> bool:
    return config.offload.fine_grained_activation_offloading and _impl(config) != "none"


def _pads_to_capacity(config: Config) -> bool:
    return config.model.moe_expert_capacity_factor is not None and config.model.moe_pad_expert_input_to_capacity


def _below_zero(number: int | None) -> bool:
    return number is None or number < 0


def _drops_and_recomputes(config: Config) -> bool:
    return config.model.hidden_dropout > 0 and any(
        _captures(config, module) and module in config.recompute_modules for module in ("mlp", "moe")
    )


GRAPH_RULES: tuple[Rule, ...] = (
    Rule(
        id="G1",
        keys=("cuda_graph.cuda_graph_scope", "cuda_graph.cuda_graph_modules"),
        applies=lambda config: config.cuda_graph.cuda_graph_scope is not None,
        summary="cuda_graph_scope is the old name of cuda_graph_modules, and both together are refused upstream.",
        message="cuda_graph_scope is deprecated",
        remedy="write cuda_graph_modules (for the scope full_iteration: cuda_graph_impl)",
        source=_CORE,
    ),
    Rule(
        id="G2",
        keys=("cuda_graph.cuda_graph_modules", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: _impl(config) == "full_iteration" and bool(config.cuda_graph.cuda_graph_modules),
        summary="cuda_graph_modules is empty with cuda_graph_impl full_iteration.",
        message="a graph of the whole iteration has no modules to choose",
        remedy="remove cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="G3",
        severity="warning",
        keys=("cuda_graph.cuda_graph_modules", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: _impl(config) == "none" and bool(config.cuda_graph.cuda_graph_modules),
        summary="cuda_graph_modules acts with a cuda_graph_impl alone.",
        message="cuda_graph_modules is ignored, since cuda_graph_impl is none",
        remedy="set cuda_graph_impl, or remove cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="R22a",
        keys=("cuda_graph.cuda_graph_impl", "offload.cpu_offloading"),
        applies=lambda config: _by_layer(config) and config.offload.cpu_offloading,
        summary="CUDA graphs of layers and layer offloading exclude each other.",
        message="cpu_offloading does not work with CUDA graphs of layers",
        remedy="set cuda_graph_impl to none or full_iteration, or remove cpu_offloading",
        source=_CORE,
    ),
    Rule(
        id="R22b",
        keys=("cuda_graph.cuda_graph_modules",),
        applies=lambda config: _names(config, "moe") and _names(config, "moe_router"),
        summary="cuda_graph_modules has moe or moe_router, not both.",
        message="cuda_graph_modules has both moe and moe_router, which is a part of moe",
        remedy="leave one of them out",
        source=_CORE,
    ),
    Rule(
        id="R22c",
        keys=("cuda_graph.cuda_graph_modules", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: (
            _impl(config) == "transformer_engine"
            and _names(config, "moe_preprocess")
            and not _names(config, "moe_router")
        ),
        summary="moe_preprocess is captured together with moe_router (local sets both by itself).",
        message="moe_preprocess is captured without moe_router",
        remedy="add moe_router to cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="R22d",
        keys=("cuda_graph.cuda_graph_modules", "model.num_moe_experts"),
        applies=lambda config: (
            (config.model.num_moe_experts or 1) <= 1 and (_names(config, "moe") or _names(config, "moe_router"))
        ),
        summary="Graphs of moe and moe_router need an MoE model.",
        message="an MoE layer is to be captured, and the model is dense",
        remedy="leave moe and moe_router out of cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="R22e",
        keys=("cuda_graph.cuda_graph_modules", "model.num_moe_experts"),
        applies=lambda config: config.has_no_dense_layer and _names(config, "mlp"),
        summary="A graph of mlp needs a dense layer.",
        message="the mlp of dense layers is to be captured, and every layer of this model is an MoE layer",
        remedy="leave mlp out of cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="R22f",
        keys=("cuda_graph.cuda_graph_modules", "model.moe_pad_expert_input_to_capacity"),
        applies=lambda config: (
            (config.model.num_moe_experts or 1) > 1 and _names(config, "moe") and not _pads_to_capacity(config)
        ),
        summary="A graph of moe needs experts of a fixed capacity that is padded.",
        message="a whole MoE layer is to be captured, and how many rows reach its experts is not fixed",
        remedy="capture moe_router instead of moe, or pad experts to a capacity",
        source=_CORE,
    ),
    Rule(
        id="R22l",
        keys=("cuda_graph.cuda_graph_modules", "model.moe_expert_capacity_factor"),
        applies=lambda config: (
            (config.model.num_moe_experts or 1) > 1
            and _names(config, "moe_preprocess")
            and config.model.moe_token_dispatcher_type == "alltoall"  # noqa: S105
            and config.model.moe_expert_capacity_factor is not None
            and not config.model.moe_pad_expert_input_to_capacity
        ),
        summary="moe_preprocess is not captured where dropped tokens are counted on the host.",
        message="moe_preprocess copies counts of tokens to the host, which a graph cannot",
        remedy="leave moe_preprocess out of cuda_graph_modules, or set moe_pad_expert_input_to_capacity",
        source=_CORE,
    ),
    Rule(
        id="R22g",
        keys=("recompute.recompute_granularity", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: _by_layer(config) and config.recompute.recompute_granularity == "full",
        summary="Full recomputation works with a graph of the full iteration alone.",
        message="whole layers are recomputed, and captured one by one",
        remedy="set cuda_graph_impl to full_iteration or none, or recompute_granularity to selective",
        source=_CORE,
    ),
    Rule(
        id="R22h",
        keys=("recompute.recompute_modules", "cuda_graph.cuda_graph_modules"),
        applies=lambda config: (
            _impl(config) == "transformer_engine" and "moe" in config.recompute_modules and _names(config, "moe_router")
        ),
        summary="Recomputing moe excludes Transformer Engine's graph of moe_router.",
        message="moe is recomputed around the captured moe_router",
        remedy="leave moe out of recompute_modules, or moe_router out of cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="R22i",
        keys=("recompute.recompute_modules", "model.attention_dropout"),
        applies=lambda config: (
            config.model.attention_dropout > 0 and _captures(config, "attn") and "core_attn" in config.recompute_modules
        ),
        summary="A captured core_attn that is recomputed has no attention dropout.",
        message="core_attn is recomputed inside a graph, which repeats no random numbers",
        remedy="set attention_dropout to 0, or leave core_attn out",
        source=_CORE,
    ),
    Rule(
        id="R22j",
        keys=("recompute.recompute_modules", "model.hidden_dropout"),
        applies=_drops_and_recomputes,
        summary="A captured mlp or moe that is recomputed has no hidden dropout.",
        message="mlp or moe is recomputed inside a graph, which repeats no random numbers",
        remedy="set hidden_dropout to 0, or leave mlp and moe out",
        source=_CORE,
    ),
    Rule(
        id="R22k",
        keys=("recompute.recompute_modules", "model.moe_input_jitter_eps"),
        applies=lambda config: (
            config.model.moe_input_jitter_eps is not None
            and _captures(config, "moe")
            and "moe" in config.recompute_modules
        ),
        summary="A captured moe that is recomputed has no jitter on its input.",
        message="moe is recomputed inside a graph, which repeats no random numbers",
        remedy="remove moe_input_jitter_eps, or leave moe out",
        source=_CORE,
    ),
    Rule(
        id="F9",
        keys=("offload.offload_modules", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: (
            _offloads_with_graph(config)
            and _impl(config) == "local"
            and (not set(config.offload.offload_modules) <= _MOE_PARTS or not config.cuda_graph.cuda_graph_modules)
        ),
        summary="With graphs of single modules by local only the parts of experts are offloaded.",
        message="cuda_graph_impl local captures what is to be offloaded",
        remedy="offload expert_fc1, moe_act or fused_group_mlp alone, and name the captured modules",
        source=_CORE,
    ),
    Rule(
        id="F10",
        keys=("cuda_graph.cuda_graph_modules", "offload.fine_grained_activation_offloading"),
        applies=lambda config: _offloads_with_graph(config) and _names(config, "moe"),
        summary="A captured moe excludes fine-grained offloading.",
        message="activations are offloaded out of a captured moe",
        remedy="leave moe out of cuda_graph_modules",
        source=_CORE,
    ),
    Rule(
        id="F11",
        keys=("cuda_graph.cuda_graph_warmup_steps", "offload.fine_grained_activation_offloading"),
        applies=lambda config: _offloads_with_graph(config) and config.cuda_graph.cuda_graph_warmup_steps == 0,
        summary="Fine-grained offloading into graphs needs a warm-up step, in which it learns what there is.",
        message="activations are offloaded out of graphs that are captured without a warm-up step",
        remedy="set cuda_graph_warmup_steps to 1 or more",
        source=_CORE,
    ),
    Rule(
        id="F12",
        keys=("offload.fine_grained_offloading_max_inflight_offloads", "cuda_graph.cuda_graph_impl"),
        applies=lambda config: (
            _offloads_with_graph(config)
            and _impl(config) == "full_iteration"
            and _below_zero(config.offload.fine_grained_offloading_max_inflight_offloads)
        ),
        summary="Fine-grained offloading in a graph of the full iteration bounds the copies under way.",
        message="fine_grained_offloading_max_inflight_offloads is not given, or below 0",
        remedy="set fine_grained_offloading_max_inflight_offloads to 0 or more",
        source=_CORE,
    ),
    Rule(
        id="G4",
        keys=("cuda_graph.nccl_graph_register", "allocator.conf"),
        applies=lambda config: (
            _impl(config) == "transformer_engine"
            and config.cuda_graph.nccl_graph_register
            and "expandable_segments:true" in config.allocator.conf.lower()
        ),
        summary="Transformer Engine's graphs with expandable segments need NCCL_GRAPH_REGISTER=0.",
        message="NCCL cannot register graph buffers in expandable segments",
        remedy="set nccl_graph_register to false, or expandable_segments:False",
        source=_ARGS,
    ),
    Rule(
        id="G5",
        severity="warning",
        keys=("offload.delay_offload_until_cuda_graph",),
        applies=lambda config: config.offload.delay_offload_until_cuda_graph and not _offloads_with_graph(config),
        summary="delay_offload_until_cuda_graph acts with graphs and fine-grained offloading alone.",
        message="delay_offload_until_cuda_graph does nothing without a CUDA graph and fine-grained offloading",
        remedy="remove delay_offload_until_cuda_graph",
        source=_CORE,
    ),
)
