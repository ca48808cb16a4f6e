"""How much memory a recorded process had, and where that is known from: a limit, its failure, or what it said itself.

A snapshot of PyTorch's does not tell the card. A failed allocation tells what was still free; oomscope's own recordings
tell the card; otherwise only the user can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from oomscope.allocator import AllocatorSettings
from oomscope.errors import UsageError
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.gaps import request_as_seen
from oomscope.snapshot.replay.replay import Device
from oomscope.snapshot.trace import Action, Snapshot, Trace
from oomscope.units import TiB, format_size

UNLIMITED: Final = Device(total_bytes=2 * TiB)
"""The card of a replay where none is known: it never refuses."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the process could hold."""

    device: Device
    """The card of replays. Where only bounds of D are known it has the least that the recording proves."""
    source: str
    """Source of the budget, for people; empty where it is not known."""
    by_fraction: bool = False
    """Whether a memory fraction refused a request although the device had enough free."""
    most_bytes: int | None = None
    """An upper bound of D, if only that is known."""

    @property
    def available_bytes(self) -> int | None:
        """D: what the caching allocator may hold, or its upper bound; None where that is unknown."""
        if not self.source:
            return None
        return self.device.available_bytes if self.most_bytes is None else self.most_bytes

    @property
    def available_is_bound(self) -> bool:
        """Whether D is only an upper bound."""
        return self.most_bytes is not None


UNKNOWN: Final = Budget(device=UNLIMITED, source="")


def budget_of(
    snapshot: Snapshot, timeline: Timeline, settings: AllocatorSettings, *, limit: int | None, non_torch: int = 0
) -> Budget:
    """Return what the process could hold on the timeline's device.

    A card of ``limit`` bytes in all, which the user gives, counts before the recording; the process held ``non_torch``
    bytes of it outside PyTorch. ``settings`` tell what a failed request took from the driver.

    Raises:
        UsageError: a card without memory.
    """
    if limit is not None:
        if limit <= 0:
            raise UsageError("a card of 0 bytes serves nothing", where="--limit", remedy="give more than 0 bytes")
        outside = f"{format_size(non_torch)} of it outside PyTorch" if non_torch else "nothing of it outside PyTorch"
        device = Device(total_bytes=limit, non_torch_bytes=non_torch)
        return Budget(device=device, source=f"a card of {format_size(limit)} as given, {outside}")
    recorded, event = _recorded(snapshot, timeline), last_failure(timeline.trace)
    return (recorded or UNKNOWN) if event is None else _at_failure(timeline, event, settings, recorded)


def last_failure(trace: Trace) -> int | None:
    """Return the last ``oom`` event; None where there is none."""
    failures = np.flatnonzero(trace.action == Action.OOM)
    return int(failures[-1]) if len(failures) else None


def _at_failure(timeline: Timeline, event: int, settings: AllocatorSettings, recorded: Budget | None) -> Budget:
    """Return what a failed allocation shows: what was held then, and what the driver reported as free.

    Where enough was free, a memory fraction refused the request: the one that the recording tells, if it can have; else
    the limit lies below what the request would have taken.
    """
    trace, held = timeline.trace, int(timeline.reserved[event])
    wanted = request_as_seen(settings, int(trace.size[event]), int(trace.stream[event])).taken_from_driver
    free = int(trace.address[event])
    if free < wanted:
        source = f"the failed allocation: {format_size(held)} held and {format_size(free)} free then"
        return Budget(device=Device(total_bytes=held + free), source=source)
    device = None if recorded is None else recorded.device
    if recorded and device and device.fraction is not None and device.available_bytes < held + wanted:
        source = f"the memory fraction in force, {device.fraction:.3g} of {recorded.source}"
        return replace(recorded, source=source, by_fraction=True)
    source = (
        f"the failed allocation, refused with {format_size(free)} free: at most, since a memory fraction was in force"
    )
    most = held + wanted - 1
    return Budget(device=Device(total_bytes=most), source=source, by_fraction=True, most_bytes=most)


def _recorded(snapshot: Snapshot, timeline: Timeline) -> Budget | None:
    cards = snapshot.provenance.cards if snapshot.provenance else ()
    card = next((card for card in cards if card.index == timeline.trace.device), None)
    if card is None or card.total_bytes < 0 or card.free_bytes < 0:
        return None
    held = sum(segment.total_size for segment in timeline.segments or ())
    device = Device(
        total_bytes=card.total_bytes,
        non_torch_bytes=max(0, card.total_bytes - card.free_bytes - held),
        fraction=card.memory_fraction if card.memory_fraction < 1 else None,
    )
    return Budget(device=device, source=f"{card.name or 'the card'} when the snapshot was written")
