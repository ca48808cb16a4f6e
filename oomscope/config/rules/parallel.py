"""Rules of parallelism: what must divide what, and which axes need each other."""

from __future__ import annotations

import math

from oomscope.config.rules.rule import ARGS, MODEL_PARALLEL, TRANSFORMER, Rule, error, needs
from oomscope.config.schema import Config

_DIVIDE = "Megatron-Core tensor_parallel/layers.py, divide"
_GROUPS = "Megatron-Core parallel_state.py, initialize_model_parallel"
_CONTEXT = "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py"
_LEVELS = 2
"""Levels of a hierarchical context-parallel group."""


def _ranks_without_group(config: Config) -> int | None:
    """Return the ranks that share the experts of a layer, where those of a stage are no multiple of them."""
    parallel, tp = config.parallel, config.parallel.tensor_model_parallel_size
    sharing = (parallel.expert_tensor_parallel_size or tp) * parallel.expert_model_parallel_size
    uneven = tp * parallel.context_parallel_size * parallel.data_parallel_size % sharing
    return sharing if config.model.num_moe_experts is not None and uneven else None


def _replicas_of_experts_differ(config: Config) -> bool:
    parallel, tp = config.parallel, config.parallel.tensor_model_parallel_size
    sharing = (parallel.expert_tensor_parallel_size or tp) * parallel.expert_model_parallel_size
    differ = config.model.num_moe_experts is not None and sharing != tp * parallel.context_parallel_size
    return parallel.use_tp_pp_dp_mapping and parallel.pipeline_model_parallel_size > 1 and differ


def _heads_cannot_be_exchanged(config: Config) -> bool:
    ranks = config.parallel.tensor_model_parallel_size * config.context_levels[0]
    uneven = any(heads % ranks for heads in (config.model.num_attention_heads, config.query_groups))
    return config.parallel.context_parallel_size > 1 and config.context_levels[0] > 1 and uneven


def _misfit_of_levels(config: Config) -> str | None:
    parallel, sizes = config.parallel, config.parallel.hierarchical_context_parallel_sizes
    if sizes is None:
        return "no levels" if parallel.context_parallel_size > 1 and parallel.cp_comm_type == "a2a+p2p" else None
    fits = len(sizes) == _LEVELS and math.prod(sizes) == parallel.context_parallel_size
    return None if fits else f"levels of {' and '.join(map(str, sizes))} ranks"


def _shards_are_uneven(config: Config) -> bool:
    parallel = config.parallel
    ranks = parallel.tensor_model_parallel_size * parallel.context_parallel_size
    return parallel.context_parallel_size > 1 and parallel.sequence_parallel and config.data.seq_length % ranks != 0


PARALLEL_RULES: tuple[Rule, ...] = (
    needs(
        "P1",
        "parallel.sequence_parallel",
        "parallel.tensor_model_parallel_size",
        f"{MODEL_PARALLEL} (Megatron-LM's launcher silently switches it off)",
        why="whose ranks it splits over",
    ),
    error(
        id="P2",
        keys="parallel.tensor_model_parallel_size model.num_attention_heads",
        applies=lambda c: c.model.num_attention_heads % c.parallel.tensor_model_parallel_size,
        message="{c.model.num_attention_heads} attention heads cannot be split evenly over "
        "{c.parallel.tensor_model_parallel_size} ranks",
        remedy="let tensor_model_parallel_size divide num_attention_heads",
        source=TRANSFORMER,
    ),
    error(
        id="P3",
        keys="model.num_query_groups model.num_attention_heads",
        applies=lambda c: c.model.num_attention_heads % c.query_groups,
        message="{c.model.num_attention_heads} attention heads cannot share {c.query_groups} query groups evenly",
        remedy="let num_query_groups divide num_attention_heads",
        source="Megatron-Core transformer/attention.py: heads of a rank // groups of a rank",
    ),
    error(
        id="P4",
        keys="parallel.tensor_model_parallel_size model.num_query_groups",
        applies=lambda c: (
            c.query_groups % c.parallel.tensor_model_parallel_size
            and c.parallel.tensor_model_parallel_size % c.query_groups
        ),
        message="{c.query_groups} query groups can neither be split over nor shared by "
        "{c.parallel.tensor_model_parallel_size} ranks",
        remedy="let one of num_query_groups and tensor_model_parallel_size divide the other",
        source=TRANSFORMER,
    ),
    error(
        id="P5",
        keys="parallel.tensor_model_parallel_size model.ffn_hidden_size",
        applies=lambda c: not c.has_no_dense_layer and c.ffn_size % c.parallel.tensor_model_parallel_size,
        message="an MLP of width {c.ffn_size} does not split evenly over {c.parallel.tensor_model_parallel_size} ranks",
        remedy="let tensor_model_parallel_size divide ffn_hidden_size",
        source=_DIVIDE,
    ),
    error(
        id="P7",
        keys="data.seq_length parallel.tensor_model_parallel_size",
        applies=lambda c: c.parallel.sequence_parallel and c.data.seq_length % c.parallel.tensor_model_parallel_size,
        message="a sequence of {c.data.seq_length} tokens cannot be split evenly over "
        "{c.parallel.tensor_model_parallel_size} ranks",
        remedy="let tensor_model_parallel_size divide seq_length",
        source="Megatron-Core tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    needs("P8", "parallel.expert_model_parallel_size", "model.num_moe_experts", TRANSFORMER),
    error(
        id="P9",
        keys="parallel.expert_model_parallel_size model.num_moe_experts",
        applies=lambda c: (
            c.model.num_moe_experts is not None and c.model.num_moe_experts % c.parallel.expert_model_parallel_size
        ),
        message="{c.model.num_moe_experts} experts cannot be split evenly over "
        "{c.parallel.expert_model_parallel_size} ranks",
        remedy="let expert_model_parallel_size divide num_moe_experts",
        source="Megatron-Core transformer/moe/moe_layer.py",
    ),
    error(
        id="P10",
        keys="parallel.expert_model_parallel_size parallel.data_parallel_size",
        applies=_ranks_without_group,
        message="the ranks of a stage (TP * CP * DP) cannot be cut into groups of {found} that share the experts",
        remedy="let expert_model_parallel_size * expert_tensor_parallel_size divide TP * CP * DP",
        source=_GROUPS,
    ),
    error(
        id="P11",
        keys="parallel.sequence_parallel parallel.tensor_model_parallel_size",
        applies=lambda c: (
            c.model.num_moe_experts is not None
            and c.parallel.tensor_model_parallel_size > 1
            and not c.parallel.sequence_parallel
        ),
        message="tensor parallelism of an MoE model needs sequence_parallel",
        remedy="set sequence_parallel to true",
        source="Megatron-Core transformer/moe/moe_layer.py (raised in training)",
    ),
    error(
        id="P12",
        keys="data.seq_length parallel.context_parallel_size",
        applies=lambda c: (
            c.parallel.context_parallel_size > 1 and c.data.seq_length % (2 * c.parallel.context_parallel_size)
        ),
        message="a sequence of {c.data.seq_length} tokens cannot be cut into 2 * "
        "{c.parallel.context_parallel_size} equal pieces",
        remedy="let 2 * context_parallel_size divide seq_length",
        source=ARGS,
    ),
    error(
        id="P13",
        keys="parallel.virtual_pipeline_model_parallel_size parallel.pipeline_model_parallel_size",
        applies=lambda c: (
            (c.parallel.virtual_pipeline_model_parallel_size or 1) > 1 and c.parallel.pipeline_model_parallel_size == 1
        ),
        message="virtual_pipeline_model_parallel_size is above 1, and there is one pipeline stage",
        remedy="set pipeline_model_parallel_size above 1, or remove virtual_pipeline_model_parallel_size",
        source=ARGS,
    ),
    needs("P14", "parallel.tp_comm_overlap", "parallel.sequence_parallel", ARGS),
    error(
        id="P15",
        keys="parallel.use_tp_pp_dp_mapping parallel.pipeline_model_parallel_size model.num_moe_experts "
        "parallel.expert_model_parallel_size parallel.expert_tensor_parallel_size parallel.context_parallel_size",
        applies=_replicas_of_experts_differ,
        message="use_tp_pp_dp_mapping needs as many replicas of the experts as of the other layers",
        remedy="let expert TP * EP be TP * CP, or set use_tp_pp_dp_mapping to false",
        source=_GROUPS,
    ),
    error(
        id="A1",
        keys="parallel.context_parallel_size model.attention_backend model.transformer_impl",
        applies=lambda c: c.parallel.context_parallel_size > 1 and c.attention_backend == "unfused",
        message="unfused attention sees the tokens of one rank only, and context_parallel_size is above 1",
        remedy="set model.attention_backend to flash, or context_parallel_size to 1",
        source="Megatron-Core transformer/dot_product_attention.py",
    ),
    error(
        id="A2",
        keys="parallel.cp_comm_type parallel.context_parallel_size model.num_query_groups",
        applies=_heads_cannot_be_exchanged,
        message="{c.model.num_attention_heads} heads in {c.query_groups} query groups cannot be shared out over "
        "{c.parallel.tensor_model_parallel_size} * {c.context_levels[0]} ranks",
        remedy="let TP * CP divide num_query_groups, or set cp_comm_type to p2p",
        source=f"{_CONTEXT}, AttnFuncWithCPAndQKVOA2A",
    ),
    error(
        id="A3",
        keys="data.seq_length parallel.context_parallel_size parallel.sequence_parallel",
        applies=_shards_are_uneven,
        message="a sequence of {c.data.seq_length} tokens cannot be split evenly over "
        "{c.parallel.tensor_model_parallel_size} * {c.parallel.context_parallel_size} ranks",
        remedy="let TP * CP divide seq_length",
        source="Megatron-Core tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    error(
        id="A7",
        keys="parallel.hierarchical_context_parallel_sizes parallel.context_parallel_size",
        applies=_misfit_of_levels,
        message="{found} do not make the {c.parallel.context_parallel_size} ranks of context_parallel_size",
        remedy="set hierarchical_context_parallel_sizes to two numbers whose product is context_parallel_size",
        source=ARGS,
    ),
)
