"""Which settings torch's allocator takes from the environment, and which it passes over in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oomscope.allocator.settings import DEFAULT_TORCH_VERSION, AllocatorSettings
from oomscope.doctor.check import Check, State
from oomscope.errors import AllocatorConfError
from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES, allocator_variable

UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
PART = "allocator settings"


def allocator_checks(environment: Mapping[str, str], torch_version: str | None) -> Iterator[Check]:
    """Yield what is in force, then each variable or key that has no effect.

    Args:
        environment: the variables.
        torch_version: whose rules are asked; None takes the newest that are known.
    """
    name = allocator_variable(environment)
    if name is None:
        yield Check(part=PART, state=State.OK, found="the defaults: no variable is set")
    else:
        yield from _in_force(name, environment[name], torch_version or DEFAULT_TORCH_VERSION)
    for other in ALLOCATOR_VARIABLES:
        if other in environment and other != name:
            yield _ignored(other, f"torch reads {name} alone where both are set", f"unset {name} or {other}")
    for other in sorted(environment):
        if _looks_meant(other):
            yield _ignored(other, "torch for CUDA knows no such variable", f"say {ALLOCATOR_VARIABLES[-1]}")
    if environment.get(UNCACHED):
        yield Check(
            part=PART,
            state=State.NOTE,
            found=f"{UNCACHED} is set",
            disables="on cuda nothing is cached: no setting has an effect, and no fragmentation is seen",
            remedy=f"unset {UNCACHED}",
        )


def _in_force(name: str, conf: str, torch_version: str) -> Iterator[Check]:
    values: dict[str, int | str | None] = {"variable": name, "conf": conf}
    try:
        settings = AllocatorSettings.parse(conf, torch_version=torch_version)
    except AllocatorConfError as error:
        column = (error.where or "").partition(", ")[2]
        yield Check(
            part=PART,
            state=State.FAILS,
            found=f"{name}={conf}{f', {column}' if column else ''}: {error.message}",
            disables="every probe that does not bring settings of its own (allocator.conf)",
            remedy=error.remedy or f"mend or unset {name}",
            values=values,
        )
        return
    shown = f"{name}={conf}" if conf else f"the defaults: {name} is empty"
    yield Check(part=PART, state=State.OK, found=shown, values=values)
    if settings.garbage_collection_threshold and settings.per_process_memory_fraction == 1.0:
        yield Check(
            part=PART,
            state=State.NOTE,
            found="garbage_collection_threshold is set",
            disables="without a memory fraction it does nothing",
            remedy="add per_process_memory_fraction, or leave it out",
        )


def _ignored(name: str, why: str, remedy: str) -> Check:
    return Check(part=PART, state=State.NOTE, found=f"{name} is ignored", disables=why, remedy=remedy)


def _looks_meant(name: str) -> bool:
    """Return whether somebody who wrote ``name`` is likely to have meant the allocator's variable."""
    upper = name.upper()
    return upper.startswith("PYTORCH") and "ALLOC" in upper and name not in ALLOCATOR_VARIABLES
