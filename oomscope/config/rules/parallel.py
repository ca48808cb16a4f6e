"""Rules of parallelism: what must divide what, and which axes need each other."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_MODEL_PARALLEL = "Megatron-Core model_parallel_config.py"
_TRANSFORMER = "Megatron-Core transformer/transformer_config.py"
_DIVIDE = "Megatron-Core tensor_parallel/layers.py, divide"
_GROUPS = "Megatron-Core parallel_state.py, initialize_model_parallel"


def _groups_fit_ranks(config: Config) -> bool:
    groups, tp = config.query_groups, config.parallel.tensor_model_parallel_size
    return groups % tp == 0 or tp % groups == 0


def _stage_ranks(config: Config) -> int:
    parallel = config.parallel
    return parallel.tensor_model_parallel_size * parallel.context_parallel_size * parallel.data_parallel_size


def _expert_ranks(config: Config) -> int:
    parallel = config.parallel
    expert_tp = parallel.expert_tensor_parallel_size or parallel.tensor_model_parallel_size
    return expert_tp * parallel.expert_model_parallel_size


PARALLEL_RULES: tuple[Rule, ...] = (
    Rule(
        id="P1",
        keys=("parallel.sequence_parallel", "parallel.tensor_model_parallel_size"),
        applies=lambda config: config.parallel.sequence_parallel and config.parallel.tensor_model_parallel_size == 1,
        summary="Sequence parallelism needs tensor parallelism.",
        message="sequence_parallel has no ranks to split over, since tensor_model_parallel_size is 1",
        remedy="set tensor_model_parallel_size above 1, or remove sequence_parallel",
        source=f"{_MODEL_PARALLEL} (Megatron-LM's launcher switches it off in silence)",
    ),
    Rule(
        id="P2",
        keys=("parallel.tensor_model_parallel_size", "model.num_attention_heads"),
        applies=lambda config: config.model.num_attention_heads % config.parallel.tensor_model_parallel_size != 0,
        summary="num_attention_heads is a multiple of tensor_model_parallel_size.",
        message=lambda config: (
            f"{config.model.num_attention_heads} attention heads cannot be split evenly over "
            f"{config.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let tensor_model_parallel_size divide num_attention_heads",
        source=_TRANSFORMER,
    ),
    Rule(
        id="P3",
        keys=("model.num_query_groups", "model.num_attention_heads"),
        applies=lambda config: config.model.num_attention_heads % config.query_groups != 0,
        summary="num_attention_heads is a multiple of num_query_groups.",
        message=lambda config: (
            f"{config.model.num_attention_heads} attention heads cannot share {config.query_groups} query groups evenly"
        ),
        remedy="let num_query_groups divide num_attention_heads",
        source="Megatron-Core transformer/attention.py: heads of a rank // groups of a rank",
    ),
    Rule(
        id="P4",
        keys=("parallel.tensor_model_parallel_size", "model.num_query_groups"),
        applies=lambda config: config.model.num_query_groups is not None and not _groups_fit_ranks(config),
        summary="num_query_groups is a multiple or a divisor of tensor_model_parallel_size.",
        message=lambda config: (
            f"{config.query_groups} query groups can neither be split over nor shared by "
            f"{config.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let one of num_query_groups and tensor_model_parallel_size divide the other",
        source=_TRANSFORMER,
    ),
    Rule(
        id="P5",
        keys=("parallel.tensor_model_parallel_size", "model.ffn_hidden_size"),
        applies=lambda config: (
            not config.has_no_dense_layer and config.ffn_size % config.parallel.tensor_model_parallel_size != 0
        ),
        summary="ffn_hidden_size is a multiple of tensor_model_parallel_size.",
        message=lambda config: (
            f"an MLP of width {config.ffn_size} cannot be split evenly over "
            f"{config.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let tensor_model_parallel_size divide ffn_hidden_size",
        source=_DIVIDE,
    ),
    Rule(
        id="P7",
        keys=("data.seq_length", "parallel.tensor_model_parallel_size"),
        applies=lambda config: (
            config.parallel.sequence_parallel
            and config.data.seq_length % config.parallel.tensor_model_parallel_size != 0
        ),
        summary="With sequence parallelism seq_length is a multiple of tensor_model_parallel_size.",
        message=lambda config: (
            f"a sequence of {config.data.seq_length} tokens cannot be split evenly over "
            f"{config.parallel.tensor_model_parallel_size} ranks"
        ),
        remedy="let tensor_model_parallel_size divide seq_length",
        source="Megatron-Core tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    Rule(
        id="P8",
        keys=("parallel.expert_model_parallel_size", "model.num_moe_experts"),
        applies=lambda config: config.parallel.expert_model_parallel_size > 1 and config.model.num_moe_experts is None,
        summary="Expert parallelism needs experts.",
        message="expert_model_parallel_size is above 1, and the model is dense",
        remedy="set model.num_moe_experts, or remove expert_model_parallel_size",
        source=_TRANSFORMER,
    ),
    Rule(
        id="P9",
        keys=("parallel.expert_model_parallel_size", "model.num_moe_experts"),
        applies=lambda config: (
            config.model.num_moe_experts is not None
            and config.model.num_moe_experts % config.parallel.expert_model_parallel_size != 0
        ),
        summary="num_moe_experts is a multiple of expert_model_parallel_size.",
        message=lambda config: (
            f"{config.model.num_moe_experts} experts cannot be split evenly over "
            f"{config.parallel.expert_model_parallel_size} ranks"
        ),
        remedy="let expert_model_parallel_size divide num_moe_experts",
        source="Megatron-Core transformer/moe/moe_layer.py",
    ),
    Rule(
        id="P10",
        keys=("parallel.expert_model_parallel_size", "parallel.data_parallel_size"),
        applies=lambda config: (
            config.model.num_moe_experts is not None and _stage_ranks(config) % _expert_ranks(config) != 0
        ),
        summary="The ranks of a pipeline stage are a multiple of those that share the experts of a layer.",
        message=lambda config: (
            f"the {_stage_ranks(config)} ranks of a pipeline stage cannot be cut into groups of "
            f"{_expert_ranks(config)} that share the experts"
        ),
        remedy="let expert_model_parallel_size * expert_tensor_parallel_size divide TP * CP * DP",
        source=_GROUPS,
    ),
    Rule(
        id="P11",
        keys=("parallel.sequence_parallel", "parallel.tensor_model_parallel_size"),
        applies=lambda config: (
            config.model.num_moe_experts is not None
            and config.parallel.tensor_model_parallel_size > 1
            and not config.parallel.sequence_parallel
        ),
        summary="An MoE model with tensor parallelism needs sequence parallelism.",
        message="tensor parallelism of an MoE model needs sequence_parallel",
        remedy="set sequence_parallel to true",
        source="Megatron-Core transformer/moe/moe_layer.py (raised in training)",
    ),
    Rule(
        id="P12",
        keys=("data.seq_length", "parallel.context_parallel_size"),
        applies=lambda config: (
            config.parallel.context_parallel_size > 1
            and config.data.seq_length % (2 * config.parallel.context_parallel_size) != 0
        ),
        summary="seq_length is a multiple of 2 * context_parallel_size.",
        message=lambda config: (
            f"a sequence of {config.data.seq_length} tokens cannot be cut into "
            f"{2 * config.parallel.context_parallel_size} equal pieces, two for each context-parallel rank"
        ),
        remedy="let 2 * context_parallel_size divide seq_length",
        source="Megatron-LM training/arguments.py",
    ),
    Rule(
        id="P13",
        keys=("parallel.virtual_pipeline_model_parallel_size", "parallel.pipeline_model_parallel_size"),
        applies=lambda config: (
            (config.parallel.virtual_pipeline_model_parallel_size or 1) > 1
            and config.parallel.pipeline_model_parallel_size == 1
        ),
        summary="Virtual pipeline stages need a pipeline.",
        message="virtual_pipeline_model_parallel_size is above 1, and there is one pipeline stage",
        remedy="set pipeline_model_parallel_size above 1, or remove virtual_pipeline_model_parallel_size",
        source="Megatron-LM training/arguments.py",
    ),
    Rule(
        id="P14",
        keys=("parallel.tp_comm_overlap", "parallel.sequence_parallel"),
        applies=lambda config: config.parallel.tp_comm_overlap and not config.parallel.sequence_parallel,
        summary="Products overlap with tensor-parallel communication under sequence parallelism only.",
        message="tp_comm_overlap is set without sequence_parallel",
        remedy="set sequence_parallel, or tp_comm_overlap to false",
        source="Megatron-LM training/arguments.py",
    ),
)
