"""Rules of mixtures of experts."""

from __future__ import annotations

from oomscope.config.rule import Rule
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
)


def _has_experts(config: Config) -> bool:
    return config.model.num_moe_experts is not None


def _without_experts(config: Config) -> list[str]:
    """Return the keys that were set to something and act on experts, which there are none of."""
    if _has_experts(config):
        return []
    defaults = ModelConfig.model_fields
    return [key for key in _ONLY_EXPERTS if getattr(config.model, key) != defaults[key].default]


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
            and not config.model.moe_router_pre_softmax
            and config.model.moe_router_load_balancing_type != "sinkhorn"
        ),
        summary="A single expert a token needs moe_router_pre_softmax: the softmax of one score is 1.",
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
            and config.model.moe_router_load_balancing_type in {"none", "sinkhorn"}
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
        id="N-balancing",
        severity="not_modelled",
        keys=("model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff"),
        applies=lambda config: (
            _has_experts(config)
            and (
                config.model.moe_router_load_balancing_type == "sinkhorn"
                or (
                    config.model.moe_router_load_balancing_type in {"seq_aux_loss", "global_aux_loss"}
                    and config.model.moe_aux_loss_coeff > 0
                )
            )
        ),
        summary="Balancing by sinkhorn, by sequences or over the global batch.",
        message=lambda config: f"balancing by {config.model.moe_router_load_balancing_type} is not there",
        remedy="set moe_router_load_balancing_type to aux_loss or none",
        source=_ROUTER,
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
