"""Bytes that one layer moves for one microbatch: through the card's memory, to other ranks, and to the host.

Matrix products read and write too, but are bound by arithmetic; what counts here are the element-wise kernels, whose
time is that of their bytes, and the collectives. Symbols as in ``gpt/stage.py``; E bytes an element. A collective
of S bytes over k ranks sends (k - 1)/k · S a rank as an all-gather or reduce-scatter, twice that as an all-reduce
(ring algorithms, NCCL ``nccl-tests/doc/PERFORMANCE.md``).
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.schema import Config
from oomscope.model.cost.flops import tokens_of
from oomscope.model.parallel.parallel_state import expert_tensor_parallel_size

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
    shared_activation: int
    """Of ``activation``: the non-linearity of shared experts."""
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
        activation=_activation(config, layer) + _shared_activation(config, layer),
        shared_activation=_shared_activation(config, layer),
        residual=2 * (3 * hidden + mask),
    )


def _rotary(config: Config) -> int:
    if config.model.multi_latent_attention:  # Q, K and V are written anew, most of them without being turned
        width = config.model.num_attention_heads * (2 * config.query_width + config.value_width)
        return 2 * element_bytes(config) * tokens_of(config) * width // config.parallel.tensor_model_parallel_size
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
    return round(element_bytes(config) * tokens_of(config) * width / t)


def _shared_activation(config: Config, layer: int) -> int:
    model, t = config.model, config.parallel.tensor_model_parallel_size
    if not config.is_moe_layer(layer):
        return 0
    width = (3 if model.gated_linear_unit else 2) * (model.moe_shared_expert_intermediate_size or 0)
    return element_bytes(config) * tokens_of(config) * width // t


class Collectives(NamedTuple):
    """Bytes that a rank sends in forward, for one microbatch and layer."""

    attention_tp: int
    """Round the attention, to the tensor-parallel ranks."""
    latents_tp: int
    """Of ``attention_tp``: what the projections up from the latents gather (MLA)."""
    mlp_tp: int
    """Round a dense MLP or shared experts, to them."""
    cp: int
    """Keys and values to all context-parallel ranks, or sequences against heads (``cp_comm_type``)."""
    ep: int
    """Rows to the experts and back; with ``allgather`` all tokens, over expert TP as well."""
    expert_tp: int
    """Rows to the other ranks that hold parts of the same experts, and back."""

    @property
    def tp(self) -> int:
        """All that goes to tensor-parallel ranks."""
        return self.attention_tp + self.mlp_tp

    @property
    def total(self) -> int:
        """All of them."""
        return self.tp + self.cp + self.ep + self.expert_tp


def layer_collectives(config: Config, layer: int = 0) -> Collectives:
    """Return what ``layer`` sends in forward.

    An all-gather and a reduce-scatter under sequence parallelism send what one all-reduce does without
    (Korthikanti et al. 2022, section 4.2.2).
    """
    t, moe = config.parallel.tensor_model_parallel_size, config.is_moe_layer(layer)
    pair = 2 * _hidden(config) * (t - 1) // t
    latents = _latents(config) * (t - 1) // t
    has_mlp = not moe or bool(config.model.moe_shared_expert_intermediate_size)
    return Collectives(
        attention_tp=_attention_pair(config, pair),
        latents_tp=latents,
        mlp_tp=pair if has_mlp else 0,
        cp=_context(config),
        ep=_to_experts(config) if moe else 0,
        expert_tp=_to_expert_parts(config) if moe else 0,
    )


def _attention_pair(config: Config, pair: int) -> int:
    """Return what goes round the attention: MLA gathers latents and the rotary key instead of the hidden state."""
    t, model = config.parallel.tensor_model_parallel_size, config.model
    if not (model.multi_latent_attention and config.parallel.sequence_parallel):
        return pair
    rotary_key = element_bytes(config) * tokens_of(config) * model.qk_pos_emb_head_dim
    return pair // 2 + (_latents(config) + rotary_key) * (t - 1) // t


def _latents(config: Config) -> int:
    """Return the bytes of the latents of the whole sequence that sequence parallelism has cut up."""
    model = config.model
    if not (model.multi_latent_attention and config.parallel.sequence_parallel):
        return 0
    return element_bytes(config) * tokens_of(config) * ((model.q_lora_rank or model.hidden_size) + model.kv_lora_rank)


def _context(config: Config) -> int:
    """Return what context parallelism sends.

    ``p2p`` and ``all_gather`` bring K and V of each rank to all others (Liu et al. 2023; Dubey et al. 2024, section
    3.3.2), ``a2a`` sends of Q, K, V and the context all but its own part (Jacobs et al. 2023); ``a2a+p2p`` does both.
    """
    (neighbours, ring), t = config.context_levels, config.parallel.tensor_model_parallel_size
    token = element_bytes(config) * tokens_of(config) * (config.query_width + config.value_width)
    keys_values = token * config.query_groups // t
    exchanged = keys_values + token * config.model.num_attention_heads // t
    return exchanged * (neighbours - 1) // neighbours + (ring - 1) * keys_values


def _to_experts(config: Config) -> int:
    """Return what the dispatcher sends along expert parallelism, there and back (Megatron-Core token_dispatcher.py)."""
    ep = config.parallel.expert_model_parallel_size
    if gathers_tokens(config):
        return 2 * _own_tokens(config) * (ep * expert_tensor_parallel_size(config) - 1)
    return 2 * _own_tokens(config) * config.model.moe_router_topk * (ep - 1) // ep


def _to_expert_parts(config: Config) -> int:
    """Return what ``alltoall`` sends besides where experts are cut up: the rows that have arrived, there and back."""
    if gathers_tokens(config):
        return 0
    rows = _own_tokens(config) * config.model.moe_router_topk * config.model.moe_imbalance_factor
    return round(2 * rows * (expert_tensor_parallel_size(config) - 1))


def gathers_tokens(config: Config) -> bool:
    """Whether every rank that shares experts is sent all tokens, and not the rows that it asks for."""
    return config.model.moe_token_dispatcher_type == "allgather"  # noqa: S105  (no password)


def _own_tokens(config: Config) -> int:
    """Return the bytes of the hidden states of the tokens that one rank routes."""
    return _hidden(config) // config.parallel.tensor_model_parallel_size


def prediction_traffic(config: Config) -> int:
    """Return the element-wise bytes of one depth of multi-token prediction beside its layer, in forward.

    Three norms, the join of two states, and the states of all depths put one after the other (a read and a write each).
    """
    return 2 * (3 + 2 + 1) * _hidden(config) // _sequence_shards(config)


def prediction_collectives(config: Config) -> int:
    """Return what one depth sends in forward to tensor-parallel ranks beside its layer: two states there, one back.

    With sequence parallelism the joined states are gathered; the projection's columns are gathered in any case.
    """
    t = config.parallel.tensor_model_parallel_size
    states = 3 if config.parallel.sequence_parallel else 1
    return states * _hidden(config) * (t - 1) // t


def _sequence_shards(config: Config) -> int:
    return config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1
