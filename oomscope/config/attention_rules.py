"""Rules of attention: over the ranks that share a sequence, and through latents."""

from __future__ import annotations

from oomscope.config.rule import Rule
from oomscope.config.schema import Config

_CONTEXT = "Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py"
_LATENT = "Megatron-Core transformer/multi_latent_attention.py"


def _shared_sequences(config: Config) -> bool:
    return config.parallel.context_parallel_size > 1


def _heads_cannot_be_exchanged(config: Config) -> bool:
    parallel = config.parallel
    ranks = parallel.tensor_model_parallel_size * parallel.context_parallel_size
    uneven = any(heads % ranks for heads in (config.model.num_attention_heads, config.query_groups))
    return _shared_sequences(config) and parallel.cp_comm_type == "a2a" and uneven


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
        summary="With cp_comm_type a2a the heads of a tensor-parallel rank are shared out over the CP ranks.",
        message=lambda config: (
            f"{config.model.num_attention_heads} heads in {config.query_groups} query groups cannot be shared out over "
            f"{config.parallel.tensor_model_parallel_size} * {config.parallel.context_parallel_size} ranks"
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
        id="N-cp-hierarchical",
        severity="not_modelled",
        keys=("parallel.cp_comm_type",),
        applies=lambda config: _shared_sequences(config) and config.parallel.cp_comm_type == "a2a+p2p",
        summary="Hierarchical context parallelism.",
        message="exchanging heads within a node and passing keys between nodes is not there",
        remedy="set cp_comm_type to p2p, a2a or all_gather",
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
