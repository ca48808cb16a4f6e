"""What a rank's layers do for one microbatch, module by module, in closed form.

Products are counted in operations (Narayanan et al. 2021, appendix; Korthikanti et al. 2022, appendix A): a
multiply-add is two, backward costs twice the forward, and causal attention counts in full, as in Megatron-LM
``training.py::num_floating_point_operations``. Element-wise kernels are counted in bytes read and written, collectives
in bytes that a rank sends: (k - 1)/k of the whole over k ranks for an all-gather or a reduce-scatter, twice that for an
all-reduce (NCCL ``nccl-tests/doc/PERFORMANCE.md``). Symbols as in ``gpt/stage.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from oomscope.config.rules.layer_split import stage_layers
from oomscope.config.schema import Config
from oomscope.model.cost.parameters import element_bytes
from oomscope.model.memory.layer_groups import layer_groups, recomputes_predictions
from oomscope.model.parallel.parallel_state import Axis, expert_tensor_parallel_size, stage_of

_PROBABILITY_PASSES = 4
"""Element passes of unfused attention over the scores: written by the product, read by the softmax, probabilities
written by it and read by the next product (Megatron-Core ``fused_softmax.py``); flash attention keeps scores on the
chip (Dao et al. 2022)."""


@dataclass(frozen=True)
class Work:
    """The forward of a module for one microbatch."""

    flops: int = 0
    moved: int = 0
    """Bytes that element-wise kernels read and write."""
    sent: Counter[Axis] = field(default_factory=Counter)
    """Bytes to the other ranks along each axis."""

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.moved + other.moved, self.sent + other.sent)


def tokens_of(config: Config) -> int:
    """Return n, the tokens of a microbatch that one rank attends from: s·b over the context-parallel ranks."""
    return config.data.seq_length * config.data.micro_batch_size // config.parallel.context_parallel_size


def layer_work(config: Config, layer: int = 0) -> dict[str, Work]:
    """Return the work of each module of ``layer``, counted over the whole model from 0.

    Modules are named as in ``recompute_modules``, where those have them.
    """
    hidden = _hidden(config) // _sequence_shards(config)
    mask = hidden // element_bytes(config) if config.model.hidden_dropout > 0 else 0
    return {
        "norm1": Work(moved=2 * hidden),
        **_attention(config),
        "norm2": Work(moved=2 * hidden),
        **(_experts(config) if config.is_moe_layer(layer) else {"mlp": _mlp(config, config.ffn_size)}),
        "residual": Work(moved=2 * (3 * hidden + mask)),
    }


def total(modules: dict[str, Work]) -> Work:
    """Return the work of all ``modules``."""
    return sum(modules.values(), Work())


def recomputed_work(config: Config, layer: int = 0) -> Work:
    """Return what selective recomputation runs again of ``layer``, its collectives included."""
    modules, moe = set(config.recompute_modules), config.is_moe_layer(layer)
    fused_norms = config.model.transformer_impl == "transformer_engine"
    again = modules & {"core_attn", "mla_up_proj", "moe_act", "shared_experts"}
    if moe and "moe" in modules:
        again |= {"experts", "moe_act", "shared_experts"}
    if "mlp" in modules and not moe:
        again |= {"mlp", "norm2"} if fused_norms else {"mlp"}
    if "layernorm" in modules and (moe or not fused_norms):
        again |= {"norm2"} if fused_norms else {"norm1", "norm2"}
    return total({name: work for name, work in layer_work(config, layer).items() if name in again})


def _hidden(config: Config) -> int:
    """Return the bytes of a hidden state [s, b, h] that one TP rank would hold whole."""
    return element_bytes(config) * tokens_of(config) * config.model.hidden_size


def _sequence_shards(config: Config) -> int:
    return config.parallel.tensor_model_parallel_size if config.parallel.sequence_parallel else 1


def _around(config: Config) -> Counter[Axis]:
    """Return what enters and leaves a tensor-parallel region: with or without sequence parallelism the same bytes
    (Korthikanti et al. 2022, section 4.2.2).
    """
    t = config.parallel.tensor_model_parallel_size
    return Counter({"tp": 2 * _hidden(config) * (t - 1) // t})


def _attention(config: Config) -> dict[str, Work]:
    """Return the projections, with latent attention those up from the latents apart, and core attention."""
    model, h, n = config.model, config.model.hidden_size, tokens_of(config)
    a, t, element = model.num_attention_heads, config.parallel.tensor_model_parallel_size, element_bytes(config)
    output = h * a * config.value_width
    rotary_heads = a + config.query_groups if model.position_embedding_type == "rope" else 0
    rotary = 2 * element * n * rotary_heads * config.query_width // t
    if model.multi_latent_attention:
        down = h * ((model.q_lora_rank or 0) + model.kv_lora_rank + model.qk_pos_emb_head_dim)
        up = (model.q_lora_rank or h) * a * config.query_width
        up += model.kv_lora_rank * a * (model.qk_head_dim + model.v_head_dim)
        written = 2 * element * n * a * (2 * config.query_width + config.value_width) // t  # Q, K and V anew
        projections = {
            "projections": Work(2 * n * (output + down) // t, 0, _around(config)),
            "mla_up_proj": Work(2 * n * up // t, written),
        }
    else:
        qkv = h * (a + 2 * config.query_groups) * config.head_dim
        flops = 2 * n * output // t + 2 * n * qkv // t
        projections = {"projections": Work(flops, rotary, _around(config))}
    scores = config.data.seq_length * n * a // t
    dropout = 2 * element + 1 if model.attention_dropout > 0 else 0  # probabilities once more, and a mask
    moved = (_PROBABILITY_PASSES * element + dropout) * scores if config.attention_backend == "unfused" else 0
    flops = 2 * n * config.data.seq_length * a * (config.query_width + config.value_width) // t
    return {**projections, "core_attn": Work(flops, moved, Counter({"cp": _to_context(config)}))}


def _to_context(config: Config) -> int:
    """Return the bytes of context parallelism.

    ``p2p`` and ``all_gather`` bring K and V of each rank to all others (Liu et al. 2023; Dubey et al. 2024, section
    3.3.2), ``a2a`` sends of Q, K, V and the context all but its own part (Jacobs et al. 2023); ``a2a+p2p`` does both.
    """
    (neighbours, ring), t = config.context_levels, config.parallel.tensor_model_parallel_size
    token = element_bytes(config) * tokens_of(config) * (config.query_width + config.value_width)
    keys_values = token * config.query_groups // t
    exchanged = keys_values + token * config.model.num_attention_heads // t
    return exchanged * (neighbours - 1) // neighbours + (ring - 1) * keys_values


def _mlp(config: Config, width: int) -> Work:
    matrices, t = 3 if config.model.gated_linear_unit else 2, config.parallel.tensor_model_parallel_size
    flops = 2 * tokens_of(config) * config.model.hidden_size * matrices * width // t
    return Work(flops, element_bytes(config) * tokens_of(config) * matrices * width // t, _around(config))


def _experts(config: Config) -> dict[str, Work]:
    """Return router and routed experts, their non-linearity with the permutation of rows, and the shared experts.

    Rows go to the experts and back, and to the other ranks that hold parts of the same experts; with ``allgather`` all
    tokens go to all ranks that share experts (Megatron-Core ``moe/token_dispatcher.py``).
    """
    model, n, h = config.model, tokens_of(config), config.model.hidden_size
    t, ep = config.parallel.tensor_model_parallel_size, config.parallel.expert_model_parallel_size
    matrices, etp = 3 if model.gated_linear_unit else 2, expert_tensor_parallel_size(config)
    visits = model.moe_router_topk * model.moe_imbalance_factor
    columns = (model.num_moe_experts or 0) + round(visits * matrices * config.expert_ffn_size)
    own = _hidden(config) // t
    if model.moe_token_dispatcher_type == "allgather":  # noqa: S105  (no password)
        sent: Counter[Axis] = Counter({"expert_tp_ep": 2 * own * (ep * etp - 1)})
    else:
        rows = 2 * own * model.moe_router_topk
        sent = Counter({"ep": rows * (ep - 1) // ep, "expert_tp": round(rows * model.moe_imbalance_factor * (etp - 1))})
    moved = round(element_bytes(config) * n * (matrices * config.expert_ffn_size + 4 * h) * visits / t)
    shared = model.moe_shared_expert_intermediate_size
    return {
        "experts": Work(2 * n * h * columns // t, 0, sent),
        "moe_act": Work(moved=moved),
        **({"shared_experts": _mlp(config, shared)} if shared else {}),
    }


# Stages and iterations -------------------------------------------------------------------------------------------


class StageLayer(NamedTuple):
    """A layer of a pipeline rank."""

    number: int
    """Counted over the whole model from 0."""
    recomputed: bool
    """Whether full recomputation runs all of it again."""

    def work(self, config: Config) -> tuple[Work, Work]:
        """Return what its forward does, and what recomputation runs again of that."""
        whole = total(layer_work(config, self.number))
        return whole, whole if self.recomputed else recomputed_work(config, self.number)


def layers_of_stage(config: Config, stage: int) -> Iterator[StageLayer]:
    """Yield the layers that pipeline rank ``stage`` holds, chunk by chunk.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    for chunk in stage_layers(config, stage):
        for group in layer_groups(config.recompute, len(chunk)):
            for place in group.layers:
                yield StageLayer(chunk[place], group.recompute)


def head_work(config: Config) -> Work:
    """Return the output layer and the loss on one TP rank; the products alone are a third of their work.

    Logits are written, copied to fp32, their maximum and sum taken, exponentiated in place, the gradient cast back:
    these bytes are of forward and backward together.
    """
    logits = tokens_of(config) * config.padded_vocab_size // config.parallel.tensor_model_parallel_size
    return Work(2 * logits * config.model.hidden_size, logits * (3 * element_bytes(config) + 6 * 4))


def prediction_work(config: Config) -> tuple[Work, Work]:
    """Return what one depth of multi-token prediction does on the last stage without its head, and what of it again.

    That is its projection [2h] → [h/t], and a layer of the kind of the last.
    """
    h, t = config.model.hidden_size, config.parallel.tensor_model_parallel_size
    projection, recomputed = Work(4 * tokens_of(config) * h * h // t), recomputes_predictions(config)
    whole, again = StageLayer(config.model.num_layers - 1, recomputed).work(config)
    return projection + whole, projection + again if recomputed else again


def stage_work(config: Config, stage: int) -> list[tuple[Work, Work]]:
    """Return for each layer and each depth of prediction of ``stage`` its work, and what is run again of that."""
    works = [layer.work(config) for layer in layers_of_stage(config, stage)]
    return works + [prediction_work(config)] * (heads_of_stage(config, stage) - 1)


def heads_of_stage(config: Config, stage: int) -> int:
    """Return how often ``stage`` runs the output layer: on the last stage once, and once for each further depth."""
    return (stage == config.parallel.pipeline_model_parallel_size - 1) * (1 + (config.model.mtp_num_layers or 0))


def iteration_flops(config: Config, *, rank: int) -> dict[str, int]:
    """Return the operations of one iteration on ``rank``: ``model`` (forward and backward) and ``recompute``.

    Raises:
        UsageError: the world has no such rank.
        ConfigError: the layers cannot be shared out.
    """
    stage = stage_of(config, rank)
    works = stage_work(config, stage)
    forward = sum(work.flops for work, _ in works) + heads_of_stage(config, stage) * head_work(config).flops
    again = sum(work.flops for _, work in works)
    return {"model": 3 * forward * config.num_microbatches, "recompute": again * config.num_microbatches}


def offloaded_bytes(config: Config, stage: int) -> int:
    """Return about how many bytes of activations pipeline rank ``stage`` sends to the host in an iteration.

    Raises:
        ConfigError: the layers cannot be shared out.
    """
    offload, times = config.offload, config.num_microbatches
    layers = list(layers_of_stage(config, stage))
    if offload.cpu_offloading and offload.cpu_offloading_activations:
        sent = layers[: offload.cpu_offloading_num_layers]
        return times * sum(sum(_saved_by(config, layer.number).values()) for layer in sent)
    if not offload.fine_grained_activation_offloading:
        return 0
    kept = [_saved_by(config, layer.number) for layer in layers if not layer.recomputed]
    saved = sum(size for modules in kept for name, size in modules.items() if name in offload.offload_modules)
    return round(times * offload.activation_offload_fraction * saved)


def _saved_by(config: Config, layer: int) -> dict[str, int]:
    """Return the bytes of the large tensors that each module of ``layer`` saves.

    Names as in ``offload_modules``, and ``mlp`` for a dense MLP or shared experts.
    """
    model, t = config.model, config.parallel.tensor_model_parallel_size
    rows, modules, moe = element_bytes(config) * tokens_of(config), config.recompute_modules, config.is_moe_layer(layer)
    hidden = _hidden(config) // _sequence_shards(config)
    a = model.num_attention_heads
    groups = a if model.multi_latent_attention else config.query_groups
    qkv = rows * (a * config.query_width + groups * (config.query_width + config.value_width)) // t
    context = rows * a * config.value_width // t
    probabilities = rows * config.data.seq_length * a // t if config.attention_backend == "unfused" else 0
    width = (model.moe_shared_expert_intermediate_size or 0) if moe else config.ffn_size
    matrices = 3 if model.gated_linear_unit else 2
    visits = rows * model.moe_router_topk * model.moe_imbalance_factor / t if moe else 0
    return {
        "attn_norm": hidden,
        "qkv_linear": hidden,
        "core_attn": qkv + (0 if "core_attn" in modules else probabilities + context),
        "attn_proj": context,
        "mlp_norm": hidden,
        "mlp": hidden + (0 if "mlp" in modules else matrices * rows * width // t),
        "expert_fc1": round(visits * model.hidden_size),
        "moe_act": round(visits * (matrices - 1) * config.expert_ffn_size) if moe else 0,
    }
