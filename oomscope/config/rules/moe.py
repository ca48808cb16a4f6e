"""Rules of mixtures of experts."""

from __future__ import annotations

from oomscope.config.rules.rule import TRANSFORMER, Rule, error
from oomscope.config.schema import Config

_ROUTER = "Megatron-Core transformer/moe/router.py"


def _by_sinkhorn(config: Config) -> bool:
    return config.model.num_moe_experts is not None and config.model.moe_router_load_balancing_type == "sinkhorn"


def _limits_groups(config: Config) -> bool:
    return config.model.num_moe_experts is not None and config.model.moe_router_group_topk is not None


def _groups_do_not_fit(config: Config) -> bool:
    model = config.model
    if not _limits_groups(config) or model.moe_router_num_groups is None:
        return False
    uneven = (model.num_moe_experts or 0) % model.moe_router_num_groups != 0
    return uneven or (model.moe_router_group_topk or 0) > model.moe_router_num_groups


def _too_few_in_a_group(config: Config) -> int | None:
    """Return the experts of a group, where those that a token may visit do not hold moe_router_topk experts."""
    model, groups, best = config.model, config.model.moe_router_num_groups, config.model.moe_router_group_topk
    if not _limits_groups(config) or groups is None or best is None or _groups_do_not_fit(config):
        return None
    members = (model.num_moe_experts or 0) // groups
    return members if model.moe_router_topk > best * members or model.moe_router_topk // best > members else None


def _ranks_of_uneven_expert(config: Config) -> int | None:
    """Return the ranks that an expert cannot be split evenly over."""
    ranks = config.parallel.expert_tensor_parallel_size or config.parallel.tensor_model_parallel_size
    return ranks if config.model.num_moe_experts is not None and config.expert_ffn_size % ranks else None


def _pattern_misses_layers(config: Config) -> bool:
    model, pattern = config.model, config.model.moe_layer_freq
    return model.num_moe_experts is not None and not isinstance(pattern, int) and len(pattern) != model.num_layers


def _shared_width_is_uneven(config: Config) -> bool:
    model, tp = config.model, config.parallel.tensor_model_parallel_size
    width = model.moe_shared_expert_intermediate_size
    return model.num_moe_experts is not None and width is not None and width % tp != 0


MOE_RULES: tuple[Rule, ...] = (
    error(
        id="E1",
        keys=("model.moe_expert_capacity_factor", "model.moe_router_load_balancing_type"),
        applies=lambda c: (
            c.model.num_moe_experts is not None
            and c.model.moe_expert_capacity_factor is not None
            and c.model.moe_router_load_balancing_type == "sinkhorn"
        ),
        message="moe_expert_capacity_factor is set, and sinkhorn balances in another way",
        remedy="set moe_router_load_balancing_type to aux_loss or none, or remove the capacity",
        source=TRANSFORMER,
    ),
    error(
        id="E2",
        keys=("model.moe_pad_expert_input_to_capacity", "model.moe_expert_capacity_factor"),
        applies=lambda c: c.model.moe_pad_expert_input_to_capacity and c.model.moe_expert_capacity_factor is None,
        message="moe_pad_expert_input_to_capacity is set, and there is no capacity",
        remedy="set moe_expert_capacity_factor, or remove moe_pad_expert_input_to_capacity",
        source=TRANSFORMER,
    ),
    error(
        id="E3",
        keys=("model.moe_layer_freq", "model.num_layers"),
        applies=_pattern_misses_layers,
        message="moe_layer_freq does not have {c.model.num_layers} entries, one for each layer",
        remedy="give a number, or one entry for each layer",
        source="Megatron-Core models/gpt/gpt_layer_specs.py",
    ),
    error(
        id="E4",
        keys=("parallel.expert_tensor_parallel_size", "model.moe_ffn_hidden_size"),
        applies=_ranks_of_uneven_expert,
        message="an expert of width {c.expert_ffn_size} cannot be split evenly over {found} ranks",
        remedy="let expert_tensor_parallel_size divide moe_ffn_hidden_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    error(
        id="E5",
        keys=("model.moe_shared_expert_intermediate_size", "parallel.tensor_model_parallel_size"),
        applies=_shared_width_is_uneven,
        message=(
            "shared experts of width {c.model.moe_shared_expert_intermediate_size} cannot be split evenly "
            "over {c.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let tensor_model_parallel_size divide moe_shared_expert_intermediate_size",
        source="Megatron-Core tensor_parallel/layers.py, divide",
    ),
    error(
        id="E6",
        keys=("model.moe_router_pre_softmax", "model.moe_router_topk"),
        applies=lambda c: (
            c.model.num_moe_experts is not None
            and c.model.moe_router_topk == 1
            and c.model.moe_router_score_function == "softmax"
            and not c.model.moe_router_pre_softmax
            and c.model.moe_router_load_balancing_type != "sinkhorn"
        ),
        message="moe_router_topk is 1, and the softmax is taken over the chosen expert alone",
        remedy="set moe_router_pre_softmax to true",
        source=TRANSFORMER,
    ),
    error(
        id="E9",
        keys=("model.moe_router_enable_expert_bias", "model.moe_router_score_function"),
        applies=lambda c: c.model.moe_router_enable_expert_bias and c.model.moe_router_score_function == "softmax",
        message="moe_router_enable_expert_bias is set, and moe_router_score_function is softmax",
        remedy="set moe_router_score_function to sigmoid, or remove moe_router_enable_expert_bias",
        source=TRANSFORMER,
    ),
    error(
        id="E10",
        keys=("model.moe_router_group_topk", "model.moe_router_num_groups"),
        applies=lambda c: _limits_groups(c) and c.model.moe_router_num_groups is None,
        message="moe_router_group_topk is set, and moe_router_num_groups is null",
        remedy="set moe_router_num_groups, or remove moe_router_group_topk",
        source=TRANSFORMER,
    ),
    error(
        id="E11",
        keys=("model.moe_router_num_groups", "model.num_moe_experts", "model.moe_router_group_topk"),
        applies=_groups_do_not_fit,
        message=(
            "{c.model.num_moe_experts} experts and a choice of {c.model.moe_router_group_topk} groups do not "
            "go with moe_router_num_groups {c.model.moe_router_num_groups}"
        ),
        remedy="let moe_router_num_groups divide num_moe_experts, and be at least moe_router_group_topk",
        source=TRANSFORMER,
    ),
    error(
        id="E12",
        keys=("model.moe_router_topk", "model.moe_router_group_topk", "model.moe_router_num_groups"),
        applies=_too_few_in_a_group,
        message=(
            "{c.model.moe_router_topk} experts of {c.model.moe_router_group_topk} groups are wanted, and a "
            "group has {found}"
        ),
        remedy="raise moe_router_group_topk, or lower moe_router_num_groups or moe_router_topk",
        source="Megatron-Core transformer/moe/moe_utils.py, group_limited_topk",
    ),
    error(
        id="E13",
        keys=("model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"),
        applies=lambda c: _by_sinkhorn(c) and c.model.moe_aux_loss_coeff > 0,
        message="moe_aux_loss_coeff is set, and sinkhorn balances without a loss",
        remedy="set moe_aux_loss_coeff to 0, or moe_router_load_balancing_type to aux_loss",
        source=_ROUTER,
    ),
)
