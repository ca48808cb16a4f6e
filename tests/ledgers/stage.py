"""How many bytes a stage keeps from forward to backward, in closed form: its layers, the embedding and the head.

Symbols as in ``layer.py``, which has the rows of a layer.
"""

from __future__ import annotations

from oomscope.config.schema import Config
from oomscope.model.cost.parameters import element_bytes
from oomscope.model.layers.cross_entropy import loss_kernels
from oomscope.model.memory.layer_groups import layer_groups
from tests.ledgers.layer import Ledger, hidden_bytes, kept_layer_ledger

_INDEX = 8
"""Bytes of a token index (int64)."""


def _tokens(config: Config) -> int:
    return config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size


def _sigma(config: Config) -> int:
    return config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1


def _stats(config: Config) -> int:
    return 4 if config.model.normalization == "RMSNorm" else 8


def layers_bytes(config: Config, num_layers: int, first: int = 0) -> int:
    """Return what ``num_layers`` layers of one stage, from ``first`` on, keep of one microbatch."""
    shards = config.parallel.tensor_model_parallel_size if config.recompute.distribute_saved_activations else 1
    checkpoint = hidden_bytes(config) // shards
    return sum(
        checkpoint
        if group.recompute
        else sum(sum(kept_layer_ledger(config, first + layer).values()) for layer in group.layers)
        for group in layer_groups(config.recompute, num_layers)
    )


def embedding_ledger(config: Config) -> Ledger:
    """Return what the embedding keeps: indices, and the dropout mask."""
    n, model = _tokens(config), config.model
    learned = model.position_embedding_type == "learned_absolute"
    return {
        "word_indices": _INDEX * n,
        "words_elsewhere": n if config.parallel.tensor_model_parallel_size > 1 else 0,
        "position_indices": _INDEX * n // config.data.micro_batch_size if learned else 0,
        "embedding_dropout_mask": n * model.hidden_size // _sigma(config) if model.hidden_dropout > 0 else 0,
    }


def head_ledger(config: Config) -> Ledger:
    """Return what the final norm, the output layer and the loss keep.

    Of the logits that is their softmax, or with Transformer Engine's loss their gradient.
    """
    n, kernels = _tokens(config), loss_kernels(config)
    hidden = hidden_bytes(config)
    rows = {
        "final_norm_input": hidden,
        "final_norm_stats": _stats(config) * n // _sigma(config),
        "output_input": hidden,
    }
    logits = n * config.padded_vocab_size // config.parallel.tensor_model_parallel_size
    if kernels in ("te", "te over logits"):
        return {**rows, "logits_gradient": (4 if kernels == "te" else element_bytes(config)) * logits}
    return {
        **rows,
        "vocabulary_softmax": 4 * logits,
        "label_indices": _INDEX * n,
        "labels_elsewhere": n,
    }


def prediction_ledger(config: Config) -> Ledger:
    """Return what multi-token prediction keeps, its own heads included.

    The model's final state is kept by the first depth's norm, the state of each other depth by the next one's; what
    the output layer reads are views of all states joined, so that ``output_input`` of the head's ledger goes away. Each
    depth has a ledger of its own layer, whose input is the projection's output, whole under sequence parallelism.
    """
    model, depths, n = config.model, config.model.mtp_num_layers or 0, _tokens(config)
    hidden, stats = hidden_bytes(config), _stats(config) * n // _sigma(config)
    head = head_ledger(config)
    inputs = {"hnorm_input": hidden, "enorm_input": hidden, "input_stats": 2 * stats}
    layer = sum(kept_layer_ledger(config, model.num_layers - 1).values())
    whole_input = (_sigma(config) - 1) * hidden
    recomputed = config.recompute.recompute_granularity == "full" and config.recompute.recompute_method == "uniform"
    inner = {"eh_proj_input": 2 * hidden, "layer": layer + whole_input, "final_norm_input": hidden, "stats": stats}
    depth = sum({"hnorm_input": hidden, "enorm_input": hidden}.values() if recomputed else {**inputs, **inner}.values())
    return {
        "depths": depths * depth,
        "embeddings": depths * sum(embedding_ledger(config).values()),
        "joined_states": (1 + depths) * hidden,
        "heads": depths * (sum(head.values()) - 2 * hidden - head["final_norm_stats"]),
        "label_masks": depths * 4 * n,
        "label_counts": depths * 4,
        "output_input": -hidden,
    }


def logits_bytes(config: Config) -> int:
    """Return the output layer's logits, E·n·V/t.

    They are gone when the loss is known, but in 16 bits they live beside their fp32 copy, ``vocabulary_softmax`` of
    :func:`head_ledger`: six bytes a logit at the loss's peak. In fp32 the copy is the logits themselves.
    """
    n = _tokens(config)
    return element_bytes(config) * n * config.padded_vocab_size // config.parallel.tensor_model_parallel_size


def stage_bytes(config: Config, num_layers: int, *, pre_process: bool, post_process: bool, first: int = 0) -> int:
    """Return what one stage, whose layers begin with ``first``, keeps of one microbatch until backward."""
    total = layers_bytes(config, num_layers, first)
    if pre_process:
        total += sum(embedding_ledger(config).values())
    if post_process:
        total += sum(head_ledger(config).values())
        total += sum(prediction_ledger(config).values()) if config.model.mtp_num_layers else 0
    return total
