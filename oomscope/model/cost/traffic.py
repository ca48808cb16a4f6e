"""Bytes that one layer moves for one microbatch: through the card's memory, to other ranks, and to the host.

Matrix products read and write too, but are bound by arithmetic; what counts here are the element-wise kernels, whose
time is that of their bytes, and the collectives. Symbols as in ``stage.py``; E bytes an element. A collective of S
bytes over k ranks sends (k - 1)/k · S a rank as an all-gather or reduce-scatter, twice that as an all-reduce (ring
algorithms, NCCL ``nccl-tests/doc/PERFORMANCE.md``).
"""

from __future__ import annotations

from typing import NamedTuple

from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.cost.flops import tokens_of
from oomscope.model.memory.layer_groups import layer_groups
from oomscope.model.parallel.parallel_state import Axis, expert_tensor_parallel_size

_PROBABILITY_PASSES = 4
"""Element passes of unfused attention over a·s·n/t scores without dropout: scores written by the product and read by
the fused softmax, probabilities written by it and read by the next product (Megatron-Core ``fused_softmax.py``)."""
_DROPOUT_PASSES = 2
"""With dropout: probabilities read once more and written once more, and a mask of one byte."""


def element_bytes(config: Config) -> int:
    """Return E, the bytes of one parameter or activation element."""
    return 2 if config.precision.bf16 or config.precision.fp16 else 4


def _hidden(config: Config) -> int:
    """Return the bytes of a hidden state [s, b, h] that one TP rank would hold whole."""
    return element_bytes(config) * tokens_of(config) * config.model.hidden_size


def _sequence_shards(config: Config) -> int:
    """Return σ, by which sequence parallelism divides what lies between the parallel regions."""
    return config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1


# Element-wise kernels --------------------------------------------------------------------------------------------


class LayerTraffic(NamedTuple):
    """Bytes that the element-wise kernels of one layer read and write in forward; backward moves twice as many."""

    norms: int
    rotary: int
    core_attention: int
    activation: int
    """The non-linearity of the dense MLP or the routed experts, with the permutation of their rows."""
    shared_activation: int
    """The non-linearity of shared experts."""
    residual: int


def layer_traffic(config: Config, layer: int = 0) -> LayerTraffic:
    """Return the element-wise bytes of ``layer``, counted over the whole model from 0."""
    hidden = _hidden(config) // _sequence_shards(config)
    mask = hidden // element_bytes(config) if config.model.hidden_dropout > 0 else 0
    return LayerTraffic(
        norms=2 * 2 * hidden,
        rotary=_rotary(config),
        core_attention=_core_attention(config),
        activation=_activation(config, layer),
        shared_activation=_shared_activation(config, layer),
        residual=2 * (3 * hidden + mask),
    )


def recomputed_traffic(config: Config, layer: int) -> int:
    """Return the element-wise bytes that selective recomputation moves again in ``layer``."""
    traffic, modules, moe = layer_traffic(config, layer), config.recompute_modules, config.is_moe_layer(layer)
    fused = config.model.transformer_impl == "transformer_engine"
    again = 0
    if "core_attn" in modules:
        again += traffic.core_attention
    if ("moe" if moe else "mlp") in modules:
        again += traffic.activation + traffic.shared_activation + (traffic.norms // 2 if fused and not moe else 0)
    elif moe:
        again += traffic.activation if "moe_act" in modules else 0
        again += traffic.shared_activation if "shared_experts" in modules else 0
    if "mla_up_proj" in modules and config.model.multi_latent_attention:
        again += traffic.rotary
    if "layernorm" in modules and (moe or not fused):
        again += traffic.norms // 2 if fused else traffic.norms
    return again


def _rotary(config: Config) -> int:
    model = config.model
    if model.multi_latent_attention:  # Q, K and V are written anew, most of them without being turned
        width = model.num_attention_heads * (2 * config.query_width + config.value_width)
    elif model.position_embedding_type == "rope":
        width = (model.num_attention_heads + config.query_groups) * config.query_width
    else:
        return 0
    return 2 * element_bytes(config) * tokens_of(config) * width // config.parallel.tensor_model_parallel_size


def _core_attention(config: Config) -> int:
    """Return what unfused attention moves; flash attention keeps its scores on the chip (Dao et al. 2022)."""
    if config.attention_backend == "flash":
        return 0
    passes = _PROBABILITY_PASSES * element_bytes(config)
    if config.model.attention_dropout > 0:
        passes += _DROPOUT_PASSES * element_bytes(config) + 1
    return passes * _scores(config)


def _scores(config: Config) -> int:
    """Return the attention scores a·s·n/t of one rank."""
    heads = config.model.num_attention_heads // config.parallel.tensor_model_parallel_size
    return heads * config.data.seq_length * tokens_of(config)


def _activation(config: Config, layer: int) -> int:
    model, t = config.model, config.parallel.tensor_model_parallel_size
    streams = 3 if model.gated_linear_unit else 2
    if not config.is_moe_layer(layer):
        return streams * element_bytes(config) * tokens_of(config) * config.ffn_size // t
    routed = streams * config.expert_ffn_size + 4 * model.hidden_size
    width = routed * model.moe_router_topk * model.moe_imbalance_factor
    return round(element_bytes(config) * tokens_of(config) * width / t)


def _shared_activation(config: Config, layer: int) -> int:
    model, t = config.model, config.parallel.tensor_model_parallel_size
    if not config.is_moe_layer(layer):
        return 0
    width = (3 if model.gated_linear_unit else 2) * (model.moe_shared_expert_intermediate_size or 0)
    return element_bytes(config) * tokens_of(config) * width // t


# Collectives -----------------------------------------------------------------------------------------------------


class Collectives(NamedTuple):
    """Bytes that a rank sends in forward, for one microbatch and layer, by the ranks that they go to."""

    attention_tp: int
    """Round the attention; with latent attention counted as without, which sends less."""
    mlp_tp: int
    """Round a dense MLP or shared experts."""
    cp: int
    """Keys and values to all context-parallel ranks, or sequences against heads (``cp_comm_type``)."""
    ep: int
    """Rows to the experts and back; with ``allgather`` all tokens, over expert TP as well."""
    expert_tp: int
    """Rows to the other ranks that hold parts of the same experts, and back."""

    def by_axis(self, config: Config) -> dict[Axis, int]:
        """Return the bytes along each axis of the world."""
        experts: Axis = "expert_tp_ep" if _gathers_tokens(config) else "ep"
        return {
            "tp": self.attention_tp + self.mlp_tp,
            "cp": self.cp,
            experts: self.ep,
            "expert_tp": self.expert_tp,
        }


def layer_collectives(config: Config, layer: int = 0) -> Collectives:
    """Return what ``layer`` sends in forward.

    An all-gather and a reduce-scatter under sequence parallelism send what one all-reduce does without
    (Korthikanti et al. 2022, section 4.2.2).
    """
    t, moe = config.parallel.tensor_model_parallel_size, config.is_moe_layer(layer)
    pair = 2 * _hidden(config) * (t - 1) // t
    has_mlp = not moe or bool(config.model.moe_shared_expert_intermediate_size)
    return Collectives(
        attention_tp=pair,
        mlp_tp=pair if has_mlp else 0,
        cp=_context(config),
        ep=_to_experts(config) if moe else 0,
        expert_tp=_to_expert_parts(config) if moe else 0,
    )


def recomputed_collectives(config: Config, layer: int) -> Collectives:
    """Return what selective recomputation sends again: an ordinary checkpoint replays its region's collectives."""
    sent, modules, moe = layer_collectives(config, layer), config.recompute_modules, config.is_moe_layer(layer)
    whole_mlp = ("moe" if moe else "mlp") in modules
    return Collectives(
        attention_tp=0,
        mlp_tp=sent.mlp_tp if whole_mlp or (moe and "shared_experts" in modules) else 0,
        cp=sent.cp if "core_attn" in modules else 0,
        ep=sent.ep if whole_mlp else 0,
        expert_tp=sent.expert_tp if whole_mlp else 0,
    )


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
    ep, own = config.parallel.expert_model_parallel_size, _own_tokens(config)
    if _gathers_tokens(config):
        return 2 * own * (ep * expert_tensor_parallel_size(config) - 1)
    return 2 * own * config.model.moe_router_topk * (ep - 1) // ep


def _to_expert_parts(config: Config) -> int:
    """Return what ``alltoall`` sends besides where experts are cut up: the rows that have arrived, there and back."""
    if _gathers_tokens(config):
        return 0
    rows = _own_tokens(config) * config.model.moe_router_topk * config.model.moe_imbalance_factor
    return round(2 * rows * (expert_tensor_parallel_size(config) - 1))


def _gathers_tokens(config: Config) -> bool:
    """Whether every rank that shares experts is sent all tokens, and not the rows that it asks for."""
    return config.model.moe_token_dispatcher_type == "allgather"  # noqa: S105  (no password)


def _own_tokens(config: Config) -> int:
    """Return the bytes of the hidden states of the tokens that one rank routes."""
    return _hidden(config) // config.parallel.tensor_model_parallel_size


# To the host -----------------------------------------------------------------------------------------------------


def offloaded_bytes(config: Config, stage: int) -> int:
    """Return about how many bytes of activations pipeline rank ``stage`` sends to the host in an iteration.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    offload, chunks = config.offload, stage_layers(config, stage)
    if offload.cpu_offloading and offload.cpu_offloading_activations:
        layers = [layer for chunk in chunks for layer in chunk][: offload.cpu_offloading_num_layers]
        return config.num_microbatches * sum(sum(_saved_by(config, layer).values()) for layer in layers)
    if not offload.fine_grained_activation_offloading:
        return 0
    kept = [
        chunk[place]
        for chunk in chunks
        for group in layer_groups(config.recompute, len(chunk))
        if not group.recompute
        for place in group.layers
    ]
    modules = offload.offload_modules
    saved = sum(size for layer in kept for name, size in _saved_by(config, layer).items() if name in modules)
    return round(config.num_microbatches * offload.activation_offload_fraction * saved)


def _saved_by(config: Config, layer: int) -> dict[str, int]:
    """Return the bytes of the large tensors that each module of ``layer`` saves.

    Names as in Megatron-Core's ``offload_modules``, and ``mlp`` for a dense MLP or shared experts.
    """
    model, t = config.model, config.parallel.tensor_model_parallel_size
    rows, modules, moe = element_bytes(config) * tokens_of(config), config.recompute_modules, config.is_moe_layer(layer)
    hidden = _hidden(config) // _sequence_shards(config)
    groups = model.num_attention_heads if model.multi_latent_attention else config.query_groups
    qkv = rows * (model.num_attention_heads * config.query_width + groups * (config.query_width + config.value_width))
    context = rows * model.num_attention_heads * config.value_width // t
    probabilities = 0 if config.attention_backend == "flash" else element_bytes(config) * _scores(config)
    core = qkv // t + (0 if "core_attn" in modules else probabilities + context)
    width = (model.moe_shared_expert_intermediate_size or 0) if moe else config.ffn_size
    matrices = 3 if model.gated_linear_unit else 2
    visits = rows * model.moe_router_topk * model.moe_imbalance_factor / t if moe else 0
    return {
        "attn_norm": hidden,
        "qkv_linear": hidden,
        "core_attn": core,
        "attn_proj": context,
        "mlp_norm": hidden,
        "mlp": hidden + (0 if "mlp" in modules else matrices * rows * width // t),
        "expert_fc1": round(visits * model.hidden_size),
        "moe_act": round(visits * (matrices - 1) * config.expert_ffn_size) if moe else 0,
    }
