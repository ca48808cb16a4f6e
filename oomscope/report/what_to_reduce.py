"""Which memory to reduce so that a run fits, by what it holds: a smaller batch helps only where bytes grow with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oomscope.units import format_size

_OF_MODEL: Final = {
    "parameter": "parameters",
    "gradient": "gradients",
    "main_gradient": "gradients",
    "optimizer_state": "optimizer states",
}
"""Categories whose bytes do not depend on the batch, and what they are called together."""
_OF_BATCH: Final = ("activation", "temporary", "input")
"""Categories most of whose bytes grow with the batch. The others may or may not."""
_LITTLE: Final = 20
"""Of the model's bytes less than one part in so many is not named."""


def what_to_reduce(
    held: Mapping[str, int], needed_bytes: int, available_bytes: int, *, is_configured: bool = False
) -> str | None:
    """Return what to reduce so that a run fits; None where it fits, or where too little of what it holds is known.

    Args:
        held: requested bytes by category when most was needed, in or after an iteration that came to its end: optimizer
            states and gradients are not all made before.
        needed_bytes: what was needed then, with the request that failed.
        available_bytes: what the process may use.
        is_configured: the run is that of a configuration, for which ``oomscope advise`` looks for changes.
    """
    missing = needed_bytes - available_bytes
    if missing <= 0:
        return None
    sizes = dict.fromkeys(_OF_MODEL.values(), 0)
    for category, name in _OF_MODEL.items():
        sizes[name] += held.get(category, 0)
    named = {name: size for name, size in sizes.items() if size > 0 and size * _LITTLE >= sum(sizes.values())}
    model, of_model, of_batch = _listed(list(named)), sum(named.values()), sum(held.get(each, 0) for each in _OF_BATCH)
    if of_model > available_bytes:
        remedy = "oomscope advise tries to shard and offload them" if is_configured else _remedy_for_all(named)
        return f"{model} alone need {format_size(of_model)}, at any batch size: {remedy}"
    is_trained = sum(sizes.values()) > sizes["parameters"]
    smaller = "smaller batch, shorter sequences" + (", recompute, offload" if is_trained else "")
    sources = (
        (of_batch, "activations and temporary tensors", smaller),
        (of_model, model, ", ".join(("sharding", "offload", *_fewer(named)))),
    )
    enough = [source for source in sources if source[0] >= missing]
    if not enough:
        return None
    pieces = [
        f"of the {format_size(size)} of {what}" + ("" if is_configured else f": {how}") for size, what, how in enough
    ]
    text = f"free at least {format_size(missing)} " + (", or " if is_configured else "; or ").join(pieces)
    return f"{text}: oomscope advise looks for changes that fit" if is_configured else text


def _remedy_for_all(named: Mapping[str, int]) -> str:
    fewer = _fewer(named)
    less = "quantize them" if fewer == ["quantization"] else f"hold fewer of them ({', '.join(fewer)})"
    return f"shard them over more GPUs (FSDP, ZeRO, tensor or pipeline parallelism), offload them, or {less}"


def _fewer(named: Mapping[str, int]) -> list[str]:
    """Return how to hold less of what a model consists of: LoRA saves no parameters, quantization nothing else."""
    is_trained = "gradients" in named or "optimizer states" in named
    return ["LoRA", *["8-bit optimizer"] * ("optimizer states" in named)] if is_trained else ["quantization"]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
