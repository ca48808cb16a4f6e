"""The changes that save memory, in the order in which the documents advise them.

Megatron-Bridge's guides ("memory tuning", "activation recompute", "CPU offloading") begin with what costs nothing,
expandable segments, go on to recomputing and offloading single modules, and end with whole layers and another split
of the model. A mask that nothing reads costs nothing either. A change here is only a proposal: the rules say whether it
may be made, a probe whether it helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Literal

from oomscope.allocator.alloc_conf import EXPANDABLE, merged
from oomscope.config.schema import Config
from oomscope.probe.tuning.shorthand import offload_overrides, recompute_overrides

Family = Literal["allocator", "attention mask", "selective recompute", "offload", "full recompute", "parallelism"]


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change of the configuration."""

    family: Family
    name: str
    """The effect, in a few words."""
    overrides: tuple[str, ...]


def are_compatible(changes: Sequence[Remedy]) -> bool:
    """Whether each of ``changes`` is in effect beside the others and adds to them: no key has two values."""
    together = overrides_of(changes)
    others = (overrides_of([other for other in changes if other is not change]) for change in changes)
    adds = all(not set(change.overrides) <= set(rest) for change, rest in zip(changes, others, strict=True))
    return adds and len({override.partition("=")[0] for override in together}) == len(together)


def overrides_of(changes: Sequence[Remedy]) -> tuple[str, ...]:
    """Return what ``changes`` set together, each key once."""
    return tuple(dict.fromkeys(override for change in changes for override in change.overrides))


def remedies(config: Config) -> Iterator[Remedy]:
    """Yield the changes that make sense for ``config``, in the documents' order; rules may still refuse some."""
    values = config.flat()
    for family in (_allocator, _mask, _selective, _offload, _full, _parallelism):
        for change in family(config):
            yield replace(change, overrides=tuple(o for o in change.overrides if not _is_null_already(o, values)))


def _is_null_already(override: str, values: Mapping[str, Any]) -> bool:
    key, _, value = override.partition("=")
    return value == "null" and values[key] is None


def _allocator(config: Config) -> Iterator[Remedy]:
    conf = config.allocator.conf
    expandable = merged(conf, EXPANDABLE)
    if expandable != merged(conf, ""):
        yield Remedy(family="allocator", name="expandable segments", overrides=(f"allocator.conf={expandable}",))


def _mask(config: Config) -> Iterator[Remedy]:
    """Leave out the mask, which the kernels of flash attention do not read."""
    if config.data.create_attention_mask_in_dataloader and config.attention_backend == "flash":
        yield Remedy(
            family="attention mask",
            name="no attention mask in the batch",
            overrides=("data.create_attention_mask_in_dataloader=false",),
        )


def _selective(config: Config) -> Iterator[Remedy]:
    if config.recompute.recompute_granularity == "full" and _whole_layers(config) >= _layers_of_a_chunk(config):
        return
    now = () if config.recompute.recompute_granularity == "full" else config.recompute_modules
    for modules in _module_sets(config):
        wanted = (*now, *(module for module in modules if module not in now))
        if len(wanted) > len(now):
            yield Remedy(
                family="selective recompute",
                name=f"recompute {', '.join(wanted)}",
                overrides=recompute_overrides("+".join(wanted)),
            )


def _module_sets(config: Config) -> Iterator[tuple[str, ...]]:
    """Yield sets of modules, cheap ones first."""
    model = config.model
    if config.attention_backend == "unfused":
        yield ("core_attn",)
    moe = model.num_moe_experts is not None
    if moe or model.transformer_impl == "local" or model.multi_latent_attention:
        yield ("layernorm",)
    if model.multi_latent_attention:
        yield ("mla_up_proj",)
    if moe and model.moe_grouped_gemm:
        yield ("moe_act",)
        yield ("layernorm", "moe_act")
    if moe and model.moe_shared_expert_intermediate_size:
        yield ("shared_experts",)
    if not moe or model.moe_layer_freq != 1:
        yield ("mlp",)
    if moe:
        yield ("moe",)


def _offload(config: Config) -> Iterator[Remedy]:
    yield from _states(config)
    if not config.offload.cpu_offloading:
        yield from _module_activations(config)
    if not config.offload.fine_grained_activation_offloading:
        yield from _layer_activations(config)


def _states(config: Config) -> Iterator[Remedy]:
    optimizer = config.optimizer
    if optimizer.optimizer != "adam":  # rule N-optimizer-offload
        return
    is_16_bit = config.precision.bf16 or config.precision.fp16
    needs_distributed = is_16_bit and not optimizer.use_distributed_optimizer  # rule O15
    needs_aware = (  # rule O14
        not optimizer.use_precision_aware_optimizer
        and (optimizer.use_distributed_optimizer or needs_distributed)
        and not (config.precision.fp8_param or config.parallel.use_megatron_fsdp)
    )
    kinds = ["distributed"] * needs_distributed + ["precision-aware"] * needs_aware
    now = optimizer.optimizer_offload_fraction if optimizer.optimizer_cpu_offload else 0
    for fraction in ("0.5", "1"):
        if float(fraction) > now:
            yield Remedy(
                family="offload",
                name=f"{float(fraction):.0%} of the optimizer's states on the host"
                + (f", with the {' '.join(kinds)} optimizer" if kinds else ""),
                overrides=(
                    *offload_overrides(f"optimizer:{fraction}")[-2:],
                    *(f"optimizer.use_{kind.replace('-', '_')}_optimizer=true" for kind in kinds),
                ),
            )


def _module_activations(config: Config) -> Iterator[Remedy]:
    offload = config.offload
    now = offload.offload_modules if offload.fine_grained_activation_offloading else ()
    experts = ("expert_fc1", "moe_act") if config.model.num_moe_experts is not None else ()
    modules = dict.fromkeys((*now, "qkv_linear", "core_attn", "attn_proj", *experts))
    if len(modules) > len(now):
        yield Remedy(
            family="offload",
            name=f"what {', '.join(modules)} save on the host",
            overrides=offload_overrides("+".join(modules))[-2:],
        )


def _layer_activations(config: Config) -> Iterator[Remedy]:
    layers = config.model.num_layers
    now = config.offload.cpu_offloading_num_layers if config.offload.cpu_offloading else 0
    for number in dict.fromkeys((layers // 4, layers // 2, layers - 2)):
        if number > now:
            yield Remedy(
                family="offload",
                name=f"activations of {number} of {layers} layers on the host",
                overrides=(*offload_overrides(f"layers:{number}")[-2:], "recompute.recompute_granularity=null"),
            )


def _layers_of_a_chunk(config: Config) -> int:
    return max(1, config.model.num_layers // (config.parallel.pipeline_model_parallel_size * config.model_chunks))


def _whole_layers(config: Config) -> int:
    """Return how many layers of a model chunk are recomputed whole now."""
    recompute = config.recompute
    if recompute.recompute_granularity != "full":
        return 0
    layers = _layers_of_a_chunk(config)
    return min(recompute.recompute_num_layers or 0, layers) if recompute.recompute_method == "block" else layers


def _full(config: Config) -> Iterator[Remedy]:
    layers, now = _layers_of_a_chunk(config), _whole_layers(config)
    if config.recompute.recompute_granularity == "full" and config.recompute.recompute_method == "uniform":
        for size in dict.fromkeys((1, isqrt(layers))):
            if size != config.recompute.recompute_num_layers:
                name = f"recompute all layers in groups of {size}"
                yield Remedy(family="full recompute", name=name, overrides=recompute_overrides(f"uniform:{size}"))
        return
    for number in dict.fromkeys((layers // 4, layers // 2, layers - layers // 4, layers)):
        if number > now:
            choice = f"block:{number}" if number < layers else "full"
            name = f"recompute {number} of {layers} layers of a stage" if number < layers else "recompute all layers"
            yield Remedy(family="full recompute", name=name, overrides=recompute_overrides(choice))


def _parallelism(config: Config) -> Iterator[Remedy]:
    parallel = config.parallel
    t, p, c, d = (
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        parallel.context_parallel_size,
        parallel.data_parallel_size,
    )
    if not config.shards_optimizer_states and d * c > 1:
        yield _split("distributed optimizer", "optimizer.use_distributed_optimizer=true")
    if not parallel.sequence_parallel and t > 1:
        yield _split("sequence parallel", "parallel.sequence_parallel=true")
    if config.data.micro_batch_size % 2 == 0:
        half = config.data.micro_batch_size // 2
        twice = _twice_the_microbatches(config)
        yield _split(f"microbatches of {half}, twice as many", f"data.micro_batch_size={half}", *twice)
    if d % 2:
        return
    fewer = (f"parallel.data_parallel_size={d // 2}", *_twice_the_microbatches(config))
    yield _split(f"context parallel {2 * c}", f"parallel.context_parallel_size={2 * c}", *fewer)
    yield _split(f"pipeline parallel {2 * p}", f"parallel.pipeline_model_parallel_size={2 * p}", *fewer)
    sequence = () if parallel.sequence_parallel else ("parallel.sequence_parallel=true",)
    yield _split(f"tensor parallel {2 * t}", f"parallel.tensor_model_parallel_size={2 * t}", *sequence, *fewer)


def _split(name: str, *overrides: str) -> Remedy:
    return Remedy(family="parallelism", name=name, overrides=overrides)


def _twice_the_microbatches(config: Config) -> tuple[str, ...]:
    """Return what keeps the global batch where half as many sequences are processed at a time."""
    if config.data.num_microbatches is None and config.data.global_batch_size is not None:
        return ()
    return (f"data.num_microbatches={2 * config.num_microbatches}",)
