"""Rules of mixtures of experts."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config, ModelConfig

_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_ROUTER = "Megatron-Core transformer/moe/router.py"
_EXPERTS = "Megatron-Core transformer/moe/experts.py"
_ONLY_EXPERTS = (
    "moe_layer_freq",
    "moe_shared_expert_intermediate_size",
    "moe_grouped_gemm",
    "moe_expert_capacity_factor",
    "moe_aux_loss_coeff",
    "moe_z_loss_coeff",
    "moe_permute_fusion",
    "moe_router_score_function",
    "moe_router_topk_scaling_factor",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "moe_router_enable_expert_bias",
    "moe_token_drop_policy",
)

_ONLY_TOP_K = (
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "moe_router_group_topk",
)


def _has_experts(config: Config) -> bool:
    return config.model.num_moe_experts is not None


def _without_experts(config: Config) -> list[str]:
    """Return the keys that were set to something and act on experts, which there are none of."""
    if _has_experts(config):
        return []
    defaults = ModelConfig.model_fields
    return [key for key in _ONLY_EXPERTS if getattr(config.model, key) != defaults[key].default]


def _by_sinkhorn(config: Config) -> bool:
    return _has_experts(config) and config.model.moe_router_load_balancing_type == "sinkhorn"


def _limits_groups(config: Config) -> bool:
    return _has_experts(config) and config.model.moe_router_group_topk is not None


def _groups_do_not_fit(config: Config) -> bool:
    model = config.model
    if not _limits_groups(config) or model.moe_router_num_groups is None:
        return False
    uneven = (model.num_moe_experts or 0) % model.moe_router_num_groups != 0
    return uneven or (model.moe_router_group_topk or 0) > model.moe_router_num_groups


def _groups_hold_too_few(config: Config) -> bool:
    model, groups, best = config.model, config.model.moe_router_num_groups, config.model.moe_router_group_topk
    if not _limits_groups(config) or groups is None or best is None or _groups_do_not_fit(config):
        return False
    members = (model.num_moe_experts or 0) // groups
    return model.moe_router_topk > best * members or model.moe_router_topk // best > members


def _ignored_by_sinkhorn(config: Config) -> list[str]:
    """Return the keys that were set to something and act on the choice by top-k, where sinkhorn chooses."""
    if not _by_sinkhorn(config):
        return []
    defaults = ModelConfig.model_fields
    return [key for key in _ONLY_TOP_K if getattr(config.model, key) != defaults[key].default]


def _expert_tp(config: Config) -> int:
    return config.parallel.expert_tensor_parallel_size or config.parallel.tensor_model_parallel_size


def _pattern_misses_layers(config: Config) -> bool:
    pattern = config.model.moe_layer_freq
    return _has_experts(config) and not isinstance(pattern, int) and len(pattern) != config.model.num_layers


def _shared_width_is_uneven(config: Config) -> bool:
    width = config.model.moe_shared_expert_intermediate_size
    return _has_experts(config) and width is not None and width % config.parallel.tensor_model_parallel_size != 0


MOE_RULES: tuple[Rule, ...] = (
    Rule(
        id="E1",
        keys=("model.moe_expert_capacity_factor", "model.moe_router_load_balancing_type"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_expert_capacity_factor is not None
            and config.model.moe_router_load_balancing_type == "sinkhorn"
        ),
        summary="A capacity is not combined with sinkhorn balancing.",
        message="moe_expert_capacity_factor is set, and sinkhorn balances in another way",
        remedy="set moe_router_load_balancing_type to aux_loss or none, or remove the capacity",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E2",
        keys=("model.moe_pad_expert_input_to_capacity", "model.moe_expert_capacity_factor"),
        applies=lambda config: (
            config.model.moe_pad_expert_input_to_capacity and config.model.moe_expert_capacity_factor is None
        ),
        summary="Padding to the capacity needs moe_expert_capacity_factor.",
        message="moe_pad_expert_input_to_capacity is set, and there is no capacity",
        remedy="set moe_expert_capacity_factor, or remove moe_pad_expert_input_to_capacity",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E3",
        keys=("model.moe_layer_freq", "model.num_layers"),
        applies=_pattern_misses_layers,
        summary="A list for moe_layer_freq has an entry for each layer.",
        message=lambda config: f"moe_layer_freq does not have {config.model.num_layers} entries, one for each layer",
        remedy="give a number, or one entry for each layer",
        source="Megatron-Core models/gpt/gpt_layer_specs.py",
    ),
    Rule(
        id="E4",
        keys=("parallel.expert_tensor_parallel_size", "model.moe_ffn_hidden_size"),
        applies=lambda config: _has_experts(config) and config.expert_ffn_size % _expert_tp(config) != 0,
        summary="The width of an expert is a multiple of expert_tensor_parallel_size.",
        message=lambda config: (
            f"an expert of width {config.expert_ffn_size} cannot be split evenly over {_expert_tp(config)} ranks"
        ),
        remedy="let expert_tensor_parallel_size divide moe_ffn_hidden_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    Rule(
        id="E5",
        keys=("model.moe_shared_expert_intermediate_size", "parallel.tensor_model_parallel_size"),
        applies=_shared_width_is_uneven,
        summary="The width of the shared experts is a multiple of tensor_model_parallel_size.",
        message=lambda config: (
            f"shared experts of width {config.model.moe_shared_expert_intermediate_size} cannot be split evenly over "
            f"{config.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let tensor_model_parallel_size divide moe_shared_expert_intermediate_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    Rule(
        id="E6",
        keys=("model.moe_router_pre_softmax", "model.moe_router_topk"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_router_topk == 1
            and config.model.moe_router_score_function == "softmax"
            and not config.model.moe_router_pre_softmax
            and config.model.moe_router_load_balancing_type != "sinkhorn"
        ),
        summary="A single expert a token needs sigmoid or moe_router_pre_softmax: the softmax of one score is 1.",
        message="moe_router_topk is 1, and the softmax is taken over the chosen expert alone",
        remedy="set moe_router_pre_softmax to true",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E7",
        severity="warning",
        keys=("model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_aux_loss_coeff > 0
            and config.model.moe_router_load_balancing_type == "none"
        ),
        summary="moe_aux_loss_coeff acts on balancing by a loss alone.",
        message=lambda config: (
            f"moe_aux_loss_coeff is ignored, since routing is balanced by {config.model.moe_router_load_balancing_type}"
        ),
        remedy="set moe_router_load_balancing_type to aux_loss, or remove moe_aux_loss_coeff",
        source=_ROUTER,
    ),
    Rule(
        id="E8",
        severity="warning",
        keys=("model.num_moe_experts",),
        applies=lambda config: bool(_without_experts(config)),
        summary="Keys of experts act on MoE layers alone.",
        message=lambda config: f"{', '.join(_without_experts(config))}: ignored, since num_moe_experts is null",
        remedy="set num_moe_experts, or remove them",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E9",
        keys=("model.moe_router_enable_expert_bias", "model.moe_router_score_function"),
        applies=lambda config: (
            config.model.moe_router_enable_expert_bias and config.model.moe_router_score_function == "softmax"
        ),
        summary="moe_router_enable_expert_bias needs sigmoid scores.",
        message="moe_router_enable_expert_bias is set, and moe_router_score_function is softmax",
        remedy="set moe_router_score_function to sigmoid, or remove moe_router_enable_expert_bias",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E10",
        keys=("model.moe_router_group_topk", "model.moe_router_num_groups"),
        applies=lambda config: _limits_groups(config) and config.model.moe_router_num_groups is None,
        summary="moe_router_group_topk needs moe_router_num_groups.",
        message="moe_router_group_topk is set, and moe_router_num_groups is null",
        remedy="set moe_router_num_groups, or remove moe_router_group_topk",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E11",
        keys=("model.moe_router_num_groups", "model.num_moe_experts", "model.moe_router_group_topk"),
        applies=_groups_do_not_fit,
        summary="moe_router_num_groups divides num_moe_experts, and is at least moe_router_group_topk.",
        message=lambda config: (
            f"{config.model.num_moe_experts} experts and a choice of {config.model.moe_router_group_topk} groups do "
            f"not go with moe_router_num_groups {config.model.moe_router_num_groups}"
        ),
        remedy="let moe_router_num_groups divide num_moe_experts, and be at least moe_router_group_topk",
        source=_TRANSFORMER,
    ),
    Rule(
        id="E12",
        keys=("model.moe_router_topk", "model.moe_router_group_topk", "model.moe_router_num_groups"),
        applies=_groups_hold_too_few,
        summary="The groups that a token may visit hold moe_router_topk experts between them.",
        message=lambda config: (
            f"{config.model.moe_router_topk} experts of {config.model.moe_router_group_topk} groups are wanted, and a "
            f"group has {(config.model.num_moe_experts or 0) // (config.model.moe_router_num_groups or 1)}"
        ),
        remedy="raise moe_router_group_topk, or lower moe_router_num_groups or moe_router_topk",
        source="Megatron-Core transformer/moe/moe_utils.py, group_limited_topk",
    ),
    Rule(
        id="E13",
        keys=("model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"),
        applies=lambda config: _by_sinkhorn(config) and config.model.moe_aux_loss_coeff > 0,
        summary="sinkhorn excludes a balancing loss.",
        message="moe_aux_loss_coeff is set, and sinkhorn balances without a loss",
        remedy="set moe_aux_loss_coeff to 0, or moe_router_load_balancing_type to aux_loss",
        source=_ROUTER,
    ),
    Rule(
        id="E14",
        severity="warning",
        keys=("model.moe_router_load_balancing_type", *(f"model.{key}" for key in _ONLY_TOP_K)),
        applies=lambda config: bool(_ignored_by_sinkhorn(config)),
        summary="Sinkhorn chooses by its own scores, from all experts.",
        message=lambda config: (
            f"{', '.join(_ignored_by_sinkhorn(config))}: ignored, since sinkhorn chooses the experts"
        ),
        remedy="remove them, or set moe_router_load_balancing_type to aux_loss or none",
        source=_ROUTER,
    ),
    Rule(
        id="E15",
        severity="warning",
        keys=("model.moe_router_num_groups", "model.moe_router_group_topk"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_router_num_groups is not None
            and config.model.moe_router_group_topk is None
        ),
        summary="moe_router_num_groups acts with moe_router_group_topk.",
        message="moe_router_num_groups is ignored, since moe_router_group_topk is null",
        remedy="set moe_router_group_topk, or remove moe_router_num_groups",
        source="Megatron-Core transformer/moe/moe_utils.py, topk_routing_with_score_function",
    ),
    Rule(
        id="E16",
        severity="warning",
        keys=("model.moe_router_pre_softmax", "model.moe_router_score_function"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_router_pre_softmax
            and config.model.moe_router_score_function == "sigmoid"
        ),
        summary="moe_router_pre_softmax acts on the softmax alone.",
        message="moe_router_pre_softmax is ignored, since sigmoid scores are always taken before the choice",
        remedy="remove moe_router_pre_softmax",
        source="Megatron-Core transformer/moe/moe_utils.py, topk_routing_with_score_function",
    ),
    Rule(
        id="E17",
        severity="warning",
        keys=("model.moe_token_drop_policy", "model.moe_expert_capacity_factor"),
        applies=lambda config: (
            _has_experts(config)
            and config.model.moe_token_drop_policy == "position"  # noqa: S105
            and config.model.moe_expert_capacity_factor is None
        ),
        summary="moe_token_drop_policy acts where there is a capacity.",
        message="moe_token_drop_policy is ignored, since moe_expert_capacity_factor is null",
        remedy="set moe_expert_capacity_factor, or remove moe_token_drop_policy",
        source=_ROUTER,
    ),
    Rule(
        id="N-dispatcher",
        severity="not_modelled",
        keys=("model.moe_token_dispatcher_type",),
        applies=lambda config: _has_experts(config) and config.model.moe_token_dispatcher_type == "flex",  # noqa: S105
        summary="The flex dispatcher: its buffers are those of DeepEP or HybridEP, libraries of their own.",
        message="the flex dispatcher, with the buffers of DeepEP, is not there",
        remedy="set moe_token_dispatcher_type to alltoall",
        source="Megatron-Core transformer/moe/token_dispatcher.py, MoEFlexTokenDispatcher",
    ),
    Rule(
        id="N-expert-bias",
        severity="not_modelled",
        keys=("model.add_bias_linear", "model.num_moe_experts"),
        applies=lambda config: _has_experts(config) and config.model.add_bias_linear,
        summary="Biases inside experts.",
        message="experts with biases are not there",
        remedy="set add_bias_linear to false (add_qkv_bias keeps those of the QKV projection)",
        source=_EXPERTS,
    ),
)
