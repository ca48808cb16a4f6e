"""Settings of a process's card, as the environment variable that the card's library reads.

The variable is read at the process's first CUDA call, not when the library is loaded: a process that was forked from
one with the card loaded still chooses its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oomscope.units import MiB
from oomscope.virtual.cards import CARDS, DEFAULT_CARD, Card

VARIABLE = "OOMSCOPE_CARD"

_MOST_DEVICES = 64

AddressPolicy = Literal["spans", "ascending", "scattered"]
ValueRule = Literal["zeros", "ones", "larger", "largest"]
Peers = Literal["alike", "processes"]


@dataclass(frozen=True, kw_only=True)
class CardSettings:
    """One process's view of the card. Unset fields make an H100 of its real size, with nothing held by others."""

    card: Card = field(default_factory=lambda: CARDS[DEFAULT_CARD])
    total_bytes: int = 0
    """Bytes of each device; 0 for as many as the card has."""
    used_bytes: int = 0
    """Bytes of ``total_bytes`` that contexts, NCCL and other processes hold."""
    budget_bytes: int = 0
    """Bytes that each device gives out in all; 0 for ``total_bytes``, which are what programs are told in any case."""
    devices: int = 1
    """Cards of this kind in the machine."""
    address_policy: AddressPolicy = "spans"
    """The order of the addresses that cudaMalloc returns; all others ascend, unless they are scattered."""
    event_lag: int = 0
    """Number of later events of its stream after which an event completes; 0 for at once."""
    values: ValueRule = "zeros"
    """Values read where the card holds nothing: zeros, or another number of the type most common for that length."""
    copy_limit_bytes: int = MiB
    """Bytes of a copy above which nothing is moved."""
    is_computed: bool = False
    """Whether the host computes what kernels would, in memory of its own: device memory is accessible to it, and all
    copies move what they copy."""
    peers: Peers = "alike"
    """The other ranks of a world: taken to hold what this one holds, or processes with cards of their own and the same
    ledger, beside which NCCL's stand-in exchanges what is within the copy limit."""
    ledger: str = ""
    """The file through which processes of one card share its budget; empty for a card of this process alone."""

    def __post_init__(self) -> None:
        fits = 0 <= self.used_bytes <= self.capacity_bytes and 1 <= self.devices <= _MOST_DEVICES
        fits &= not 0 < self.budget_bytes < self.capacity_bytes
        if not fits or min(self.total_bytes, self.budget_bytes, self.event_lag, self.copy_limit_bytes) < 0:
            raise ValueError(f"invalid card settings: {self}")
        if self.peers == "processes" and not self.ledger:
            raise ValueError("the processes of one world need a common ledger file, and none is named")
        if any(sign in self.ledger + self.card.device_name for sign in ";\n\0"):
            raise ValueError(f"a card's settings cannot contain {self.ledger!r}")

    @property
    def capacity_bytes(self) -> int:
        """Bytes of each device in all."""
        return self.total_bytes or self.card.total_bytes

    def variables(self) -> dict[str, str]:
        """Return the environment variable of these settings: ``key=value``, separated by semicolons.

        The keys are those that csrc/core/settings.cpp reads.
        """
        card, limits = self.card, self.card.sm_limits
        values: dict[str, object] = {
            "name": card.device_name,
            "total": self.capacity_bytes,
            "used": self.used_bytes,
            "budget": self.budget_bytes or self.capacity_bytes,
            "devices": self.devices,
            "sms": card.multiprocessors,
            "major": card.capability[0],
            "minor": card.capability[1],
            "l2": card.l2_bytes,
            "bus": card.bus_bits,
            "smem_block": limits.shared_bytes_per_block,
            "smem_sm": limits.shared_bytes,
            "threads_sm": limits.threads,
            "blocks_sm": limits.blocks,
            "addresses": self.address_policy,
            "event_lag": self.event_lag,
            "values": self.values,
            "copy_limit": self.copy_limit_bytes,
            "computed": int(self.is_computed),
            "peers": self.peers,
        }
        if self.ledger:
            values["ledger"] = self.ledger
        return {VARIABLE: ";".join(f"{key}={value}" for key, value in values.items())}


def is_computed(environment: Mapping[str, str]) -> bool:
    """Return whether the card of a process with these variables is one with ``CardSettings.is_computed``."""
    return "computed=1" in environment.get(VARIABLE, "").split(";")
