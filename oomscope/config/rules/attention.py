"""Rules of attention: over the ranks that share a sequence, and through latents."""

from __future__ import annotations

import math

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config

_CONTEXT = "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py"
_LATENT = "Megatron-Core transformer/multi_latent_attention.py"


_LEVELS = 2
"""Of a hierarchical context-parallel group."""


def _shared_sequences(config: Config) -> bool:
    return config.parallel.context_parallel_size > 1


def _ranks_of_heads(config: Config) -> int:
    return config.parallel.tensor_model_parallel_size * config.context_levels[0]


def _heads_cannot_be_exchanged(config: Config) -> bool:
    ranks = _ranks_of_heads(config)
    uneven = any(heads % ranks for heads in (config.model.num_attention_heads, config.query_groups))
    return _shared_sequences(config) and config.context_levels[0] > 1 and uneven


def _levels(config: Config) -> str:
    sizes = config.parallel.hierarchical_context_parallel_sizes
    return f"levels of {' and '.join(map(str, sizes))} ranks" if sizes else "no levels"


def _levels_do_not_fit(config: Config) -> bool:
    parallel = config.parallel
    sizes = parallel.hierarchical_context_parallel_sizes
    if sizes is None:
        return _shared_sequences(config) and parallel.cp_comm_type == "a2a+p2p"
    return len(sizes) != _LEVELS or math.prod(sizes) != parallel.context_parallel_size


def _shards_are_uneven(config: Config) -> bool:
    parallel = config.parallel
    ranks = parallel.tensor_model_parallel_size * parallel.context_parallel_size
    return _shared_sequences(config) and parallel.sequence_parallel and config.data.seq_length % ranks != 0


ATTENTION_RULES: tuple[Rule, ...] = (
    Rule(
        id="A1",
        keys=("parallel.context_parallel_size", "model.attention_backend", "model.transformer_impl"),
        applies=lambda config: _shared_sequences(config) and config.attention_backend == "unfused",
        summary="Context parallelism needs flash attention.",
        message="unfused attention sees the tokens of one rank only, and context_parallel_size is above 1",
        remedy="set model.attention_backend to flash, or context_parallel_size to 1",
        source="Megatron-Core transformer/dot_product_attention.py",
    ),
    Rule(
        id="A2",
        keys=("parallel.cp_comm_type", "parallel.context_parallel_size", "model.num_query_groups"),
        applies=_heads_cannot_be_exchanged,
        summary="With cp_comm_type a2a, or a2a+p2p, the heads of a tensor-parallel rank are shared out over CP ranks.",
        message=lambda config: (
            f"{config.model.num_attention_heads} heads in {config.query_groups} query groups cannot be shared out over "
            f"{config.parallel.tensor_model_parallel_size} * {config.context_levels[0]} ranks"
        ),
        remedy="let TP * CP divide num_query_groups, or set cp_comm_type to p2p",
        source=f"{_CONTEXT}, AttnFuncWithCPAndQKVOA2A",
    ),
    Rule(
        id="A3",
        keys=("data.seq_length", "parallel.context_parallel_size", "parallel.sequence_parallel"),
        applies=_shards_are_uneven,
        summary="With sequence parallelism seq_length is a multiple of TP * CP.",
        message=lambda config: (
            f"a sequence of {config.data.seq_length} tokens cannot be split evenly over "
            f"{config.parallel.tensor_model_parallel_size} * {config.parallel.context_parallel_size} ranks"
        ),
        remedy="let TP * CP divide seq_length",
        source="Megatron-Core tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    Rule(
        id="A4",
        keys=("model.qk_pos_emb_head_dim",),
        applies=lambda config: config.model.multi_latent_attention and config.model.qk_pos_emb_head_dim % 2 != 0,
        summary="The rotary part of a latent head has even width.",
        message=lambda config: f"rotary parts of width {config.model.qk_pos_emb_head_dim} cannot be rotated in pairs",
        remedy="let qk_pos_emb_head_dim be even",
        source="Megatron-Core models/common/embeddings/rotary_pos_embedding.py",
    ),
    Rule(
        id="A5",
        keys=("model.num_query_groups", "model.multi_latent_attention"),
        applies=lambda config: (
            config.model.multi_latent_attention and config.query_groups != config.model.num_attention_heads
        ),
        summary="Multi-latent attention has no query groups.",
        message="num_query_groups is given, and every head of multi-latent attention has a key of its own",
        remedy="set num_query_groups to null",
        source="Megatron-LM training/theoretical_memory_usage.py",
    ),
    Rule(
        id="A6",
        severity="warning",
        keys=("model.kv_channels", "model.multi_latent_attention"),
        applies=lambda config: config.model.multi_latent_attention and config.model.kv_channels is not None,
        summary="kv_channels has no effect on multi-latent attention.",
        message="kv_channels is ignored, since multi_latent_attention has widths of its own",
        remedy="remove kv_channels, and set qk_head_dim and v_head_dim",
        source=_LATENT,
    ),
    Rule(
        id="A7",
        keys=("parallel.hierarchical_context_parallel_sizes", "parallel.context_parallel_size"),
        applies=_levels_do_not_fit,
        summary="cp_comm_type a2a+p2p needs two levels whose product is context_parallel_size.",
        message=lambda config: (
            f"{_levels(config)} do not make the {config.parallel.context_parallel_size} ranks of context_parallel_size"
        ),
        remedy="set hierarchical_context_parallel_sizes to two numbers whose product is context_parallel_size",
        source="Megatron-LM training/arguments.py",
    ),
    Rule(
        id="A8",
        severity="warning",
        keys=("parallel.hierarchical_context_parallel_sizes", "parallel.cp_comm_type"),
        applies=lambda config: (
            config.parallel.hierarchical_context_parallel_sizes is not None
            and config.parallel.cp_comm_type != "a2a+p2p"
        ),
        summary="hierarchical_context_parallel_sizes acts with cp_comm_type a2a+p2p alone.",
        message="hierarchical_context_parallel_sizes is ignored, since cp_comm_type is not a2a+p2p",
        remedy="remove hierarchical_context_parallel_sizes, or set cp_comm_type to a2a+p2p",
        source=_CONTEXT,
    ),
    Rule(
        id="N-cp-latent",
        severity="not_modelled",
        keys=("parallel.context_parallel_size", "model.multi_latent_attention"),
        applies=lambda config: _shared_sequences(config) and config.model.multi_latent_attention,
        summary="Multi-latent attention over several ranks of one sequence.",
        message="context parallelism with keys and values of different width is not there",
        remedy="set context_parallel_size to 1",
        source=_CONTEXT,
    ),
)
