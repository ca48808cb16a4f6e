"""Short names for what a sweep varies: ``recompute=full`` stands for three keys, ``offload=layers:8`` for two.

``recompute``: none · selective · uniform:N · block:N · full (uniform:1) · modules joined by ``+``.
``offload``: none · layers:N · optimizer[:FRACTION] · modules joined by ``+``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from oomscope.config.schema import OffloadModule, RecomputeModule
from oomscope.errors import UsageError
from oomscope.printable import quoted

_NO_RECOMPUTE = (
    "recompute.recompute_granularity=null",
    "recompute.recompute_method=null",
    "recompute.recompute_num_layers=null",
    "recompute.recompute_modules=null",
)
_NO_OFFLOAD = (
    "offload.cpu_offloading=false",
    "offload.cpu_offloading_num_layers=0",
    "offload.fine_grained_activation_offloading=false",
    "offload.offload_modules=[]",
    "optimizer.optimizer_cpu_offload=false",
    "optimizer.optimizer_offload_fraction=0",
)


def recompute_overrides(choice: str) -> tuple[str, ...]:
    """Return the overrides that ``choice`` of ``recompute`` stands for.

    Raises:
        UsageError: there is no such choice.
    """
    name, _, number = choice.partition(":")
    if choice == "none":
        return _NO_RECOMPUTE
    if choice == "full":
        name, number = "uniform", "1"
    if name in {"uniform", "block"} and number.isdigit():
        return (
            "recompute.recompute_granularity=full",
            f"recompute.recompute_method={name}",
            f"recompute.recompute_num_layers={number}",
            "recompute.recompute_modules=null",
        )
    selective = ("recompute.recompute_granularity=selective", *_NO_RECOMPUTE[1:])
    if choice == "selective":
        return selective
    return (
        *selective[:-1],
        f"recompute.recompute_modules=[{_modules('recompute', choice, get_args(RecomputeModule))}]",
    )


def offload_overrides(choice: str) -> tuple[str, ...]:
    """Return the overrides that ``choice`` of ``offload`` stands for.

    Raises:
        UsageError: there is no such choice.
    """
    name, _, number = choice.partition(":")
    if choice == "none":
        return _NO_OFFLOAD
    if name == "layers" and number.isdigit():
        chosen = ("offload.cpu_offloading=true", f"offload.cpu_offloading_num_layers={number}")
    elif name == "optimizer":
        chosen = ("optimizer.optimizer_cpu_offload=true", f"optimizer.optimizer_offload_fraction={number or '1'}")
    else:
        modules = _modules("offload", choice, get_args(OffloadModule))
        chosen = ("offload.fine_grained_activation_offloading=true", f"offload.offload_modules=[{modules}]")
    changed = {override.partition("=")[0] for override in chosen}
    return (*(override for override in _NO_OFFLOAD if override.partition("=")[0] not in changed), *chosen)


def _modules(axis: str, choice: str, known: tuple[str, ...]) -> str:
    modules = choice.split("+")
    for module in modules:
        if module not in known:
            others = "none, selective, full, uniform:N, block:N" if axis == "recompute" else "none, layers:N, optimizer"
            raise UsageError(
                f"{axis} has no choice {quoted(module)}",
                remedy=f"give {others}, or modules joined by +: {', '.join(known)}",
            )
    return ",".join(modules)


SHORTHANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "recompute": recompute_overrides,
    "offload": offload_overrides,
}
"""Meaning of the choices by short name."""
