"""Plays the operations of an open allocator trace through the real allocator, and keeps all that it did.

A card stands for the smaller device of the record through the memory fraction. What other processes held in the record
lowers the fraction; what the real driver hands out, and in which order, is what the play is for. Events of other
streams that "are not ready" become streams kept busy by a spinning kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tests.gpu.captures.history import columns_of

SPIN_CYCLES = 1_000_000_000
"""Some half a second on the cards of these years; the operations that it has to outlast take milliseconds."""
ASKED = ("name", "conf", "total_bytes", "other_bytes", "fraction", "ops")
"""What of a record is played; the rest is what others answered."""


def play(spec: dict[str, Any]) -> dict[str, Any]:
    """Return what the allocator of this process did with ``spec["record"]``.

    The process must have been started with the record's settings, and have no CUDA context yet.
    """
    record = spec["record"]
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)  # type: ignore[call-arg]
    player = Player(Card(total=torch.cuda.get_device_properties(0).total_memory, record=record))
    player.run(record["ops"])
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()  # type: ignore[no-untyped-call]
    return {
        "name": record["name"],
        "conf": record["conf"],
        "settings": snapshot["allocator_settings"],
        "limit_bytes": player.card.limits,
        "total_bytes": player.card.total,
        "driver_total_bytes": torch.cuda.mem_get_info()[1],
        "record": {name: record[name] for name in ASKED},
        "placements": player.placements,
        "ooms": player.ooms,
        "markers": player.markers,
        "holds": player.holds,
        "streams": [stream.cuda_stream for stream in player.streams],
        "trace": columns_of(snapshot["device_traces"][0]),
        "segments": [_segment(segment) for segment in snapshot["segments"]],
        "stats": torch.cuda.memory_stats(),
    }


@dataclass
class Card:
    """The limit that stands for a record's device on a larger card."""

    total: int
    record: dict[str, Any]
    other: int = 0
    fraction: float | None = None
    limits: list[int] = field(default_factory=list)
    """Each limit set, in bytes, as the allocator computes it."""

    def __post_init__(self) -> None:
        self.other, self.fraction = self.record["other_bytes"], self.record["fraction"]

    def limit(self) -> int:
        """Return the bytes that the record's allocator may hold."""
        free = self.record["total_bytes"] - self.other
        return free if self.fraction is None else min(free, int(self.fraction * self.record["total_bytes"]))

    def set(self) -> None:
        """Set the fraction of this card that the limit is; the allocator's own product may be a byte less."""
        fraction = min(1.0, (self.limit() + 0.5) / self.total)
        torch.cuda.set_per_process_memory_fraction(fraction)
        self.limits.append(int(fraction * self.total))


@dataclass
class Player:
    """Performs operations; blocks that a stream is recorded on are tensors, all others bare pointers."""

    card: Card
    placements: list[int | None] = field(default_factory=list)
    ooms: list[int] = field(default_factory=list)
    """The operations that failed."""
    markers: list[dict[str, Any]] = field(default_factory=list)
    holds: list[dict[str, Any]] = field(default_factory=list)
    """Where streams were held, and whether all of them still were when they were let go."""
    streams: list[torch.cuda.Stream] = field(default_factory=list)
    _held: dict[int, int | torch.Tensor] = field(default_factory=dict)

    def run(self, ops: list[list[Any]]) -> None:
        """Perform ``ops`` in order."""
        self.card.set()
        used = [op[3] for op in ops if op[0] == "m" and len(op) > 3] + [op[2] for op in ops if op[0] == "r"]
        others = (torch.cuda.Stream() for _ in range(max(used, default=0)))
        self.streams += [torch.cuda.default_stream(), *others]
        recorded = {op[1] for op in ops if op[0] == "r"}
        for number, (kind, *operands) in enumerate(ops):
            if kind == "m":
                self._malloc(number, *operands, as_tensor=operands[0] in recorded)
            elif kind == "f":
                self._free(operands[0])
            else:
                self._control(number, kind, operands)

    def _malloc(self, number: int, name: int, size: int, stream: int = 0, *, as_tensor: bool) -> None:
        try:
            with torch.cuda.stream(self.streams[stream]):
                held = torch.empty(size, dtype=torch.uint8, device="cuda") if as_tensor else _pointer(size)
        except torch.OutOfMemoryError:
            self.ooms.append(number)
            self.placements.append(None)
            return
        address = held.data_ptr() if isinstance(held, torch.Tensor) else held
        self.placements.append(address or None)
        if address:
            self._held[name] = held

    def _free(self, name: int) -> None:
        held = self._held.pop(name, None)
        if isinstance(held, int):
            torch.cuda.caching_allocator_delete(held)

    def _control(self, number: int, kind: str, operands: list[Any]) -> None:
        if kind == "e":
            torch.cuda.empty_cache()
        elif kind == "r":
            held = self._held.get(operands[0])
            if isinstance(held, torch.Tensor):
                held.record_stream(self.streams[operands[1]])
        elif kind == "p":
            self._hold_events(number, hold=bool(operands[0]))
        elif kind == "o":
            self.card.other = operands[0]
            self.card.set()
        elif kind == "x":
            self.card.fraction = operands[0]
            self.card.set()
        elif kind == "c":
            set_conf(operands[0])
        elif kind == "s":
            self.markers.append({"op": number, "stats": torch.cuda.memory_stats()})
        else:
            raise ValueError(f"operation {number} is of an unknown kind: {kind!r}")

    def _hold_events(self, number: int, *, hold: bool) -> None:
        if not hold:
            if self.holds and "until" not in self.holds[-1]:
                outlasted = not any(stream.query() for stream in self.streams)
                self.holds[-1] |= {"until": number, "outlasted": outlasted}
            torch.cuda.synchronize()
            return
        self.holds.append({"op": number})
        for stream in self.streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SPIN_CYCLES)


def set_conf(conf: str) -> None:
    """Change the allocator's settings while it runs, by the name that this torch has for it."""
    by_accelerator = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (by_accelerator or torch.cuda.memory._set_allocator_settings)(conf)


def _pointer(size: int) -> int:
    return int(torch.cuda.caching_allocator_alloc(size, stream=torch.cuda.current_stream()))


def _segment(segment: dict[str, Any]) -> dict[str, Any]:
    """Return a segment of a snapshot without its stacks."""
    names = ("address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type")
    kept: dict[str, Any] = {name: segment[name] for name in names if name in segment}
    blocks = [[block["address"], block["size"], block["requested_size"], block["state"]] for block in segment["blocks"]]
    return {**kept, "is_expandable": segment.get("is_expandable"), "blocks": blocks}
