"""Which memory to reduce so that a run fits, by what it holds: a smaller batch helps only where bytes grow with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.sites import Site
from oomscope.units import format_size

_OF_MODEL: Final = {
    "parameter": "parameters",
    "gradient": "gradients",
    "main_gradient": "gradients",
    "optimizer_state": "optimizer states",
}
"""Categories whose bytes do not depend on the batch, and what they are called together."""
_OF_BATCH: Final = {"activation": "activations", "temporary": "temporary tensors", "input": "inputs"}
"""Categories most of whose bytes grow with the batch. The others may or may not."""
BATCH_PHASES: Final = ("forward", "loss", "backward")
"""Phases whose requests grow with the batch."""
_OF_FOREACH: Final = re.compile(r"(^|/)torch/optim/(\w+)\.py$")
_HAS_FUSED: Final = frozenset({"adam", "adamw", "sgd"})
"""Modules of torch.optim that have a fused step on CUDA."""
_LITTLE: Final = 20
"""Divisor of the bytes: a smaller part is not named."""
_LOADING: Final = re.compile(r"(^|/)torch/serialization\.py$")


class KeptTensors(NamedTuple):
    """Tensors of a line that live from iteration to iteration outside the model, such as a loaded checkpoint."""

    site: Site
    bytes: int
    is_loaded: bool
    """Whether ``torch.load`` made them."""


def what_to_reduce(
    held: Mapping[str, int],
    available_bytes: int,
    *,
    request_bytes: int = 0,
    grows_with_batch: bool = True,
    is_trained: bool = True,
    is_configured: bool = False,
    step: Sequence[str] | None = None,
    kept: KeptTensors | None = None,
) -> str | None:
    """Return what to reduce so that a run fits; None where it fits, or where too little of what it holds is known.

    Args:
        held: requested bytes by category when most was needed, in or after an iteration that came to its end: optimizer
            states and gradients are not all made before.
        available_bytes: what the process may use.
        request_bytes: of a request that failed then.
        grows_with_batch: whether these do, as in forward, loss and backward.
        is_trained: the program trains, also where it holds neither gradients nor optimizer states.
        is_configured: the run is that of a configuration, for which ``oomscope advise`` looks for changes.
        step: where most was needed in the optimizer's step, whose temporary tensors are as large as parameters at any
            batch size: what makes these smaller, see :func:`step_remedies`.
        kept: see :func:`most_kept`.
    """
    missing = sum(held.values()) + request_bytes - available_bytes
    if missing <= 0:
        return None
    of_batch = {"the request that failed": request_bytes if grows_with_batch else 0}
    in_step = {} if step is None else {"temporary": "temporary tensors of the optimizer's step"}
    with_batch = {category: name for category, name in _OF_BATCH.items() if category not in in_step}
    model, batch = _considerable(held, _OF_MODEL), _considerable(held, with_batch, of_batch)
    has_frozen = sum(held.get(each, 0) for each in _OF_MODEL) > held.get("parameter", 0)
    fewer = _fewer(model, is_trained=is_trained, has_frozen=has_frozen)
    if model_exceeds(held, available_bytes):
        remedies = ["shard them over more GPUs (FSDP, ZeRO, tensor or pipeline parallelism)", "offload them", *fewer]
        remedy = _listed(remedies, "or")
        if is_configured:
            remedy = "oomscope advise tries to shard and offload them"
        return f"{_listed(list(model))} alone need {format_size(sum(model.values()))}, at any batch size: {remedy}"
    smaller = ["smaller batch", "shorter sequences", *(("recompute", "offload") if is_trained or has_frozen else ())]
    sources = (
        (_considerable(held, in_step), list(step or ())),
        *([] if kept is None or is_configured or kept.bytes > held.get("kept", 0) else [_of_line(kept)]),
        (batch, smaller),
        (model, ["sharding", "offload", *fewer]),
    )
    pieces = [
        f"of the {format_size(sum(parts.values()))} of {_listed(list(parts))}"
        + ("" if is_configured or not remedies else f": {', '.join(remedies)}")
        for parts, remedies in sources
        if sum(parts.values()) >= missing
    ]
    if not pieces:
        return None
    text = f"free at least {format_size(missing)} " + (", or " if is_configured else "; or ").join(pieces)
    return f"{text}: oomscope advise looks for changes that fit" if is_configured else text


def model_exceeds(held: Mapping[str, int], available_bytes: int) -> bool:
    """Whether parameters, gradients and optimizer states alone exceed the card, at any batch size."""
    return sum(_considerable(held, _OF_MODEL).values()) > available_bytes


def step_remedies(phase: str, stacks: LiveStacks | None) -> tuple[str, ...] | None:
    """Return what makes the temporary tensors of the optimizer's step smaller; None in another ``phase``.

    Steps of torch.optim that do all parameters at once (foreach) hold some of the size of all; their functions are
    named ``_multi_tensor_adam`` and the like.
    """
    if phase != "optimizer":
        return None
    if stacks is None:
        return ()
    temporary = (row for row in stacks.rows if row.category == "temporary")
    frames = (frame for row in temporary for frame in stacks.stack(row) if frame.name.startswith("_multi_tensor_"))
    found = next(filter(None, (_OF_FOREACH.search(frame.filename) for frame in frames)), None)
    if found is None:
        return ()
    return ("foreach=False or fused=True",) if found[2] in _HAS_FUSED else ("foreach=False",)


def most_kept(stacks: LiveStacks | None) -> KeptTensors | None:
    """Return the kept tensors of the line that made most of them; None where none are known."""
    if stacks is None:
        return None
    lines: dict[Site, KeptTensors] = {}
    for row in stacks.rows:
        if row.category == "kept":
            is_loaded = any(_LOADING.search(frame.filename) for frame in stacks.stack(row))
            line = lines.get(stacks.site(row), KeptTensors(stacks.site(row), 0, is_loaded=True))
            lines[line.site] = KeptTensors(line.site, line.bytes + row.bytes[0], line.is_loaded and is_loaded)
    return max(lines.values(), key=lambda line: line.bytes, default=None)


def _of_line(kept: KeptTensors) -> tuple[dict[str, int], list[str]]:
    """Return a part of what is held, and what to do about it."""
    loaded, made = 'delete them after use, or load them with map_location="cpu"', "delete or offload them"
    return {f"tensors kept from {kept.site.brief}": kept.bytes}, [loaded if kept.is_loaded else made]


def _considerable(
    held: Mapping[str, int], names: Mapping[str, str], others: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the bytes of ``names`` and ``others`` that are worth naming."""
    sizes = dict.fromkeys(names.values(), 0) | dict(others or {})
    for category, name in names.items():
        sizes[name] += held.get(category, 0)
    return {name: size for name, size in sizes.items() if size > 0 and size * _LITTLE >= sum(sizes.values())}


def _fewer(model: Mapping[str, int], *, is_trained: bool, has_frozen: bool) -> list[str]:
    """Return how to hold less of ``model``. LoRA saves no parameters; only frozen ones can be quantized."""
    if "optimizer states" in model:
        return ["LoRA", "8-bit optimizer"]
    if "gradients" in model:
        return ["LoRA"]
    return ["quantization"] if has_frozen or not is_trained else []


def _listed(names: list[str], word: str = "and") -> str:
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)
