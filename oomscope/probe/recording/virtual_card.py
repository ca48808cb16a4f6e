"""The virtual card of a run: what its processes are told of it, and what the allocator may use. No torch here."""

from __future__ import annotations

from typing import Final

from oomscope.probe.measurement import DeviceBudget
from oomscope.probe.recording.session import SessionSettings
from oomscope.virtual import CardSettings

UNLIMITED_BYTES: Final = 2**46
"""The card of a run without a limit."""


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


def variables_of(settings: SessionSettings, *, ledger: str = "") -> dict[str, str]:
    """Return the variables that tell a process of its card.

    Args:
        settings: the card, its limit, what others hold of it, and what it answers where it holds nothing.
        ledger: the file through which several processes share the card; empty for a card of one process.
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
        ledger=ledger,
    )
    return card.variables()
