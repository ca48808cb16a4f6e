"""How somebody else's code is measured: the sections of a configuration that are not about the bundled model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.config.schema import Config

HARNESS_SECTIONS = ("allocator", "device", "probe")
"""Sections of a configuration that apply to somebody else's code: how it is measured, not what it is."""
ANY_MODEL = "gpt-tiny"
"""A preset to take defaults of those sections from."""


def harness_settings(overrides: Sequence[str], *, starts_world: bool = False) -> Config:
    """Return a configuration whose sections allocator, device and probe say how a harness is measured.

    Its world has ``probe.world_size`` ranks, which are replicas of each other: a configuration cannot say otherwise.
    How many a program has that ``starts_world`` itself is not known before it does.

    Raises:
        UsageError: an override is about the bundled model, or asks for ``worst`` of ranks that nothing tells apart.
        ConfigError: an override is wrong.
    """
    from oomscope.config.load import load_preset
    from oomscope.probe.machine.checks import check_card

    for override in overrides:
        if override.partition(".")[0] not in HARNESS_SECTIONS:
            allowed = ", ".join(HARNESS_SECTIONS)
            where, remedy = f"override {override}", f"only the sections {allowed} do"
            raise UsageError("does not apply to a harness", where=where, remedy=remedy)
    probe = load_preset(ANY_MODEL, overrides, enforce=False).config.probe
    world_size = probe.world_size or 1
    if starts_world and probe.world_size is None and isinstance(probe.rank, int):
        world_size = probe.rank + 1
    loaded = load_preset(ANY_MODEL, (*overrides, f"parallel.data_parallel_size={world_size}"))
    check_card(loaded, has_model=False)
    if loaded.config.probe.rank == "worst" and world_size > 1:
        raise UsageError(
            "it is unknown which ranks of a harness differ", where="--rank worst", remedy="give a rank's number"
        )
    return loaded.config
