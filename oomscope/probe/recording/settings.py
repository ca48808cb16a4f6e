"""What a session is told: the card, the allocator's settings and the ring of events. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oomscope.probe.measurement import DeviceBudget
from oomscope.virtual import CardSettings
from oomscope.virtual.cards import Card
from oomscope.virtual.settings import AddressPolicy, Peers, ValueRule

if TYPE_CHECKING:
    import torch


Modules: TypeAlias = "torch.nn.Module | list[torch.nn.Module] | None"
Optimizers: TypeAlias = "torch.optim.Optimizer | list[torch.optim.Optimizer] | None"


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What a backend is told; plain data, sizes in bytes."""

    gpu: Card | None
    """The card to play; None on cuda means the card that is there."""
    limit_bytes: int | None = None
    """A card with this many bytes in all; None means the card's own total."""
    values: ValueRule = "zeros"
    """What a virtual card answers where it holds nothing."""
    unlimited: bool = False
    """No allocation fails: the run that tells the demand after a failure. A real card cannot."""
    non_torch_bytes: int = 0
    other_process_bytes: int = 0
    allocator_conf: str = ""
    stream_lag: int = 0
    address_policy: AddressPolicy = "ascending"
    """The order of a virtual card's addresses."""
    is_recorded: bool = True
    """Events are recorded with their stacks; without, a run on a card tells only what torch counts, and the failure."""
    max_entries: int = 1_000_000
    max_frames: int = 40


def listed(value: Any) -> list[Any]:
    """Return the models or optimizers that a target names: none, one or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


UNLIMITED_BYTES: Final = 2**42
"""The card of a run without a limit. With expandable segments torch reserves addresses for each pool of a stream: 9/8
of the card (c10/cuda/CUDACachingAllocator.cpp); a process has 2^47 bytes of them."""


def budget_of(settings: SessionSettings) -> DeviceBudget:
    """Return the card as a process of the run sees it."""
    if settings.gpu is None:
        raise ValueError("a virtual card plays a card: settings.gpu must name one")
    return DeviceBudget(
        gpu=settings.gpu.name,
        limit_bytes=settings.limit_bytes or settings.gpu.total_bytes,
        non_torch_bytes=settings.non_torch_bytes,
        other_process_bytes=settings.other_process_bytes,
    )


def variables_of(settings: SessionSettings, *, ledger: str = "", peers: Peers = "alike") -> dict[str, str]:
    """Return the variables that tell a process of its card.

    Args:
        settings: the card, its limit, what others hold of it, and what it answers where it holds nothing.
        ledger: the file through which several processes share the card; empty for a card of one process.
        peers: what the other ranks of a world are.
    """
    if settings.gpu is None:
        raise ValueError("a virtual card plays a card: settings.gpu must name one")
    budget = budget_of(settings)
    total = UNLIMITED_BYTES if settings.unlimited else budget.limit_bytes
    card = CardSettings(
        card=settings.gpu,
        total_bytes=total,
        used_bytes=min(budget.non_torch_bytes + budget.other_process_bytes, total),
        address_policy=settings.address_policy,
        event_lag=settings.stream_lag,
        values=settings.values,
        peers=peers,
        ledger=ledger,
    )
    return card.variables()
