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
_LITTLE: Final = 20
"""Less than one part in so many is not worth a remedy of its own."""


def what_to_reduce(
    held: Mapping[str, int], needed_bytes: int, available_bytes: int, *, is_configured: bool = False
) -> str | None:
    """Return what to reduce so that a run fits; None where it fits, or where most of what it holds is unknown.

    Args:
        held: requested bytes by category when most was needed, in or after an iteration that came to its end: optimizer
            states and gradients are not all made before.
        needed_bytes: what was needed then, with the request that failed.
        available_bytes: what the process may use.
        is_configured: the run is that of a configuration, of which ``oomscope advise`` finds changes.
    """
    if needed_bytes <= available_bytes or 2 * held.get("unknown", 0) > needed_bytes:
        return None
    sizes = dict.fromkeys(_OF_MODEL.values(), 0)
    for category, name in _OF_MODEL.items():
        sizes[name] += held.get(category, 0)
    of_model = sum(sizes.values())
    *first, last = [name for name, size in sizes.items() if size * _LITTLE >= of_model]
    model = f"{', '.join(first)} and {last}" if first else last
    is_trained = of_model > sizes["parameters"]
    if of_model > available_bytes:
        fewer = "hold fewer of them (LoRA, an 8-bit optimizer)" if is_trained else "quantize them"
        sharding = "FSDP, ZeRO, tensor or pipeline parallelism"
        remedy = f"shard them over more GPUs ({sharding}), offload them, or {fewer}"
        if is_configured:
            remedy = "oomscope advise tries to shard and offload them"
        return f"{model} alone need {format_size(of_model)}, at any batch size: {remedy}"
    smaller = f"the {format_size(needed_bytes - of_model)} of activations and other tensors"
    leaner = f"or of the {format_size(of_model)} of {model}" if of_model * _LITTLE >= needed_bytes else ""
    missing = f"free at least {format_size(needed_bytes - available_bytes)} of {smaller}"
    if is_configured:
        return f"{', '.join(filter(None, (missing, leaner)))}: oomscope advise finds changes that fit"
    missing += ": smaller batch, shorter sequences, recompute, offload"
    leaner += f": sharding, offload, {'LoRA, 8-bit optimizer' if is_trained else 'quantization'}" if leaner else ""
    return "; ".join(filter(None, (missing, leaner)))
