"""Keys that do nothing beside the values of others: a warning where one is set, one row for each reason."""

from __future__ import annotations

from collections.abc import Callable

from oomscope.config.rules.rule import ARGS, LAYER, MODEL_PARALLEL, TRANSFORMER, Rule, default_of, holds, warning
from oomscope.config.schema import Config

_MTP = "Megatron-Core transformer/multi_token_prediction.py"
_ROUTER = "Megatron-Core transformer/moe/router.py"
_ROUTING = "Megatron-Core transformer/moe/moe_utils.py, topk_routing_with_score_function"
_DDP = "Megatron-Core distributed/distributed_data_parallel_config.py"
_BUFFERS = "Megatron-Core distributed/param_and_grad_buffer.py, group_params_for_buffers"
_SCHEDULES = "Megatron-Core pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving"
_TE = "Transformer Engine pytorch/cpu_offload.py, version 2"
_OPTIMIZER = "Megatron-Core optimizer/__init__.py"
_FSDP2 = "Megatron-Core distributed/torch_fully_sharded_data_parallel.py"


def _ignored(id_: str, keys: str, when: Callable[[Config], bool], because: str, source: str) -> Rule:
    """Return the rule that ``keys``, dotted and separated by white space, do nothing ``when`` something else is so."""

    def applies(config: Config) -> list[str]:
        return [key.partition(".")[2] for key in keys.split() if holds(config, key)] if when(config) else []

    message = f"{{found}}: ignored, since {because}"
    return warning(
        id=id_, keys=keys, applies=applies, message=message, remedy="remove it, or change that", source=source
    )


def _without(id_: str, keys: str, needed: str, source: str) -> Rule:
    """Return the rule that ``keys`` do nothing where the setting ``needed`` does not hold."""
    key, _, value = needed.partition("=")
    because = f"{key.partition('.')[2]} is {f'not {value}' if value else default_of(key)}"
    return _ignored(id_, keys, lambda c: not holds(c, needed), because, source)


def _has_experts(config: Config) -> bool:
    return config.model.num_moe_experts is not None


def _always(config: Config) -> bool:
    return True


IGNORED: tuple[Rule, ...] = (
    _without(
        "E8",
        "model.moe_layer_freq model.moe_shared_expert_intermediate_size"
        " model.moe_grouped_gemm model.moe_expert_capacity_factor model.moe_aux_loss_coeff model.moe_z_loss_coeff"
        " model.moe_permute_fusion model.moe_router_score_function model.moe_router_topk_scaling_factor"
        " model.moe_router_num_groups model.moe_router_group_topk model.moe_router_enable_expert_bias"
        " model.moe_token_drop_policy",
        "model.num_moe_experts",
        TRANSFORMER,
    ),
    _ignored(
        "E14",
        "model.moe_router_score_function model.moe_router_pre_softmax model.moe_router_topk_scaling_factor"
        " model.moe_router_group_topk",
        lambda c: _has_experts(c) and c.model.moe_router_load_balancing_type == "sinkhorn",
        "sinkhorn chooses the experts",
        _ROUTER,
    ),
    _ignored(
        "E7",
        "model.moe_aux_loss_coeff",
        lambda c: _has_experts(c) and c.model.moe_router_load_balancing_type == "none",
        "moe_router_load_balancing_type is none",
        _ROUTER,
    ),
    _ignored(
        "E15",
        "model.moe_router_num_groups",
        lambda c: _has_experts(c) and c.model.moe_router_group_topk is None,
        "moe_router_group_topk is null",
        _ROUTING,
    ),
    _ignored(
        "E16",
        "model.moe_router_pre_softmax",
        lambda c: _has_experts(c) and c.model.moe_router_score_function == "sigmoid",
        "sigmoid scores are always taken before the choice",
        _ROUTING,
    ),
    _ignored(
        "E17",
        "model.moe_token_drop_policy",
        lambda c: _has_experts(c) and c.model.moe_expert_capacity_factor is None,
        "moe_expert_capacity_factor is null",
        _ROUTER,
    ),
    _ignored(
        "A6",
        "model.kv_channels",
        lambda c: c.model.multi_latent_attention,
        "multi_latent_attention has widths of its own, qk_head_dim and v_head_dim",
        "Megatron-Core transformer/multi_latent_attention.py",
    ),
    _without("MTP5", "model.mtp_use_repeated_layer", "model.mtp_num_layers", _MTP),
    _without(
        "A8",
        "parallel.hierarchical_context_parallel_sizes",
        "parallel.cp_comm_type=a2a+p2p",
        "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py",
    ),
    _ignored(
        "V7",
        "parallel.microbatch_group_size_per_vp_stage",
        lambda c: c.model_chunks == 1,
        "a rank holds one model chunk",
        _SCHEDULES,
    ),
    _ignored(
        "V10",
        "parallel.overlap_p2p_comm",
        lambda c: c.model_chunks == 1 and c.parallel.overlap_p2p_comm is True,
        "a rank holds one model chunk",
        ARGS,
    ),
    _without("V13", "parallel.wgrad_deferral_limit", "parallel.defer_embedding_wgrad_compute", MODEL_PARALLEL),
    _without(
        "S12",
        "parallel.data_parallel_sharding_strategy parallel.suggested_communication_unit_size"
        " parallel.fsdp_double_buffer parallel.megatron_fsdp_main_grads_dtype parallel.megatron_fsdp_grad_comm_dtype",
        "parallel.use_megatron_fsdp",
        _DDP,
    ),
    _ignored(
        "S16",
        "optimizer.overlap_grad_reduce",
        lambda c: c.parallel.use_torch_fsdp2,
        "use_torch_fsdp2 reduces each unit behind its backward anyway",
        _FSDP2,
    ),
    _without("S17", "parallel.torch_fsdp2_reshard_after_forward", "parallel.use_torch_fsdp2", ARGS),
    _ignored(
        "M9",
        "precision.grad_reduce_in_fp32",
        lambda c: not (c.precision.bf16 or c.precision.fp16),
        "the parameters are fp32",
        _BUFFERS,
    ),
    _ignored(
        "O5",
        "offload.cpu_offloading_weights",
        _always,
        "Transformer Engine 2 does not read it",
        _TE,
    ),
    _without("O7", "offload.cpu_offloading", "offload.cpu_offloading_num_layers", TRANSFORMER),
    _without(
        "O9",
        "offload.cpu_offloading_num_layers",
        "offload.cpu_offloading",
        f"{MODEL_PARALLEL} (Megatron-LM's launcher sets it by itself)",
    ),
    _without(
        "F14",
        "offload.offload_modules offload.activation_offload_fraction offload.min_offloaded_tensor_size",
        "offload.fine_grained_activation_offloading",
        TRANSFORMER,
    ),
    _ignored(
        "F15",
        "offload.fine_grained_activation_offloading",
        lambda c: c.offload.activation_offload_fraction == 0,
        "activation_offload_fraction is 0",
        "Megatron-Core pipeline_parallel/fine_grained_activation_offload.py",
    ),
    _without(
        "O12",
        "optimizer.optimizer_offload_fraction optimizer.overlap_cpu_optimizer_d2h_h2d",
        "optimizer.optimizer_cpu_offload",
        _OPTIMIZER,
    ),
    _ignored(
        "R19",
        "recompute.recompute_method",
        lambda c: c.recompute.recompute_granularity == "selective",
        "recompute_granularity is selective (Megatron-LM's launcher refuses it)",
        ARGS,
    ),
    _without(
        "R20b",
        "recompute.distribute_saved_activations",
        "recompute.recompute_granularity=full",
        f"{LAYER}: other call sites of checkpoint pass False (Megatron-LM's launcher refuses it)",
    ),
    _without("R28", "recompute.recompute_modules", "recompute.recompute_granularity=selective", TRANSFORMER),
    _without(
        "R29",
        "recompute.recompute_method recompute.recompute_num_layers",
        "recompute.recompute_granularity",
        TRANSFORMER,
    ),
)
