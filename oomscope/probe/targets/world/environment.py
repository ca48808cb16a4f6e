"""The place of a played rank, as the variables that a launcher would have set. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CARDS_OF_A_MACHINE: Final = 8
"""Ranks that share a machine in a played world: the local rank, and the number of cards that the process sees."""
LOCAL_WORLD: Final = "LOCAL_WORLD_SIZE"
LAUNCHED: Final = "TORCHELASTIC_RUN_ID"
"""Set by torchrun in each process that it starts."""
_NO_MONITOR: Final = {"TORCH_NCCL_ENABLE_MONITORING": "0"}
"""NCCL's heartbeat monitor asks the store every second, from a thread that Python does not know of."""


def variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that make a process ``rank`` of ``world_size``, as torchrun names them."""
    local_world = min(world_size, CARDS_OF_A_MACHINE)
    places = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank % local_world,
        LOCAL_WORLD: local_world,
        "GROUP_RANK": rank // local_world,
        "MASTER_PORT": 29500,
    }
    return {name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"} | _NO_MONITOR


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher gave this process; None where it gave none."""
    rank = environment.get("RANK", "")
    return int(rank) if rank.isdecimal() else None
