"""Bytes that one layer moves for one microbatch: through the card's memory, to other ranks, and to the host.

Matrix products read and write too, but are bound by arithmetic; what counts here are the element-wise kernels, whose
time is that of their bytes, and the collectives. Symbols as in ``transformer.py``; E bytes an element. A collective
of S bytes over k ranks sends (k - 1)/k · S a rank as an all-gather or reduce-scatter, twice that as an all-reduce
(ring algorithms, NCCL ``nccl-tests/doc/PERFORMANCE.md``).
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config
from oomscope.model.flops import tokens_of

_PROBABILITY_PASSES = 4
"""Element passes of unfused attention over a·s·n/t scores without dropout: scores written by the product and read by
the fused softmax, probabilities written by it and read by the next product (Megatron-Core ``fused_softmax.py``)."""
_DROPOUT_PASSES = 2
"""With dropout: probabilities read once more and written once more, and a mask of one byte."""


class LayerTraffic(NamedTuple):
    """Bytes that the element-wise kernels of one layer read and write in forward; backward moves twice as many."""

    norms: int
    attention: int
    """Rotary embedding and core attention."""
    core_attention: int
    """Of ``attention``: core attention."""
    activation: int
    """The MLP's non-linearity, and with experts the permutation of rows."""
    residual: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.norms + self.attention + self.activation + self.residual


def element_bytes(config: Config) -> int:
    """Return E, the bytes of one activation element."""
    return 2 if config.precision.bf16 or config.precision.fp16 else 4


def _hidden(config: Config) -> int:
    """Return the bytes of a hidden state [s, b, h] that one TP rank would hold whole."""
    return element_bytes(config) * tokens_of(config) * config.model.hidden_size


def layer_traffic(config: Config, layer: int = 0) -> LayerTraffic:
    """Return the element-wise bytes of ``layer``, counted over the whole model from 0."""
    model, t = config.model, config.parallel.tensor_model_parallel_size
    hidden = _hidden(config) // (t if config.parallel.sequence_parallel else 1)
    mask = hidden // element_bytes(config) if model.hidden_dropout > 0 else 0
    core = _core_attention(config)
    return LayerTraffic(
        norms=2 * 2 * hidden,
        attention=core + _rotary(config),
        core_attention=core,
        activation=_activation(config, layer),
        residual=2 * (3 * hidden + mask),
    )


def _rotary(config: Config) -> int:
    if config.model.position_embedding_type != "rope":
        return 0
    heads = config.model.num_attention_heads + config.query_groups
    width = heads * config.query_width // config.parallel.tensor_model_parallel_size
    return 2 * element_bytes(config) * tokens_of(config) * width


def _core_attention(config: Config) -> int:
    """Return what unfused attention moves; flash attention keeps its scores on the chip (Dao et al. 2022)."""
    if config.attention_backend == "flash":
        return 0
    model, t = config.model, config.parallel.tensor_model_parallel_size
    scores = model.num_attention_heads * config.data.seq_length * tokens_of(config) // t
    passes = _PROBABILITY_PASSES * element_bytes(config)
    if model.attention_dropout > 0:
        passes += _DROPOUT_PASSES * element_bytes(config) + 1
    return passes * scores


def _activation(config: Config, layer: int) -> int:
    model, t = config.model, config.parallel.tensor_model_parallel_size
    streams = 3 if model.gated_linear_unit else 2
    if not config.is_moe_layer(layer):
        return streams * element_bytes(config) * tokens_of(config) * config.ffn_size // t
    routed = streams * (model.moe_ffn_hidden_size or config.ffn_size) + 4 * model.hidden_size
    width = routed * model.moe_router_topk * model.moe_imbalance_factor
    width += streams * (model.moe_shared_expert_intermediate_size or 0)
    return round(element_bytes(config) * tokens_of(config) * width / t)


class Collectives(NamedTuple):
    """Bytes that a rank sends in forward, for one microbatch and layer."""

    attention_tp: int
    """Round the attention, to the tensor-parallel ranks."""
    mlp_tp: int
    """Round a dense MLP, to them."""
    cp: int
    """Keys and values round the context-parallel ring."""
    ep: int
    """Rows to the experts and back."""

    @property
    def tp(self) -> int:
        """All that goes to tensor-parallel ranks."""
        return self.attention_tp + self.mlp_tp


def layer_collectives(config: Config, layer: int = 0) -> Collectives:
    """Return what ``layer`` sends in forward.

    An all-gather and a reduce-scatter under sequence parallelism send what one all-reduce does without
    (Korthikanti et al. 2022, section 4.2.2).
    """
    model, parallel = config.model, config.parallel
    t, c, ep = (
        parallel.tensor_model_parallel_size,
        parallel.context_parallel_size,
        parallel.expert_model_parallel_size,
    )
    pair = 2 * _hidden(config) * (t - 1) // t
    moe = config.is_moe_layer(layer)
    ring = element_bytes(config) * tokens_of(config) * 2 * config.query_groups * config.query_width // t
    rows = _hidden(config) // t * model.moe_router_topk
    return Collectives(
        attention_tp=pair,
        mlp_tp=0 if moe else pair,
        cp=(c - 1) * ring,
        ep=2 * rows * (ep - 1) // ep if moe else 0,
    )
