"""The counters that ``torch.cuda.memory_stats`` shows, kept as PyTorch keeps them (c10/core/CachingDeviceAllocator.h).

Every kind counts ``current``, ``peak``, ``allocated`` (the sum of all increases) and ``freed`` (of all decreases), for
both pools and for all of them together.
"""

from __future__ import annotations

from typing import TypedDict

from oomscope.allocator.constants import (
    CURRENT,
    DEVICE_ALLOCS,
    DEVICE_FREES,
    FELL,
    OOMS,
    PEAK,
    RETRIES,
    ROSE,
    STAT_FIELDS,
    STAT_NAMES,
    STAT_ROW,
    STATS,
    SYNCS,
    UNLIMITED,
)
from oomscope.allocator.heap import Ints

Stat = dict[str, int]


class DeviceStats(TypedDict):
    """PyTorch's nested statistics of one device; counts, or bytes where the name says so."""

    allocation: dict[str, Stat]
    segment: dict[str, Stat]
    active: dict[str, Stat]
    inactive_split: dict[str, Stat]
    allocated_bytes: dict[str, Stat]
    reserved_bytes: dict[str, Stat]
    active_bytes: dict[str, Stat]
    inactive_split_bytes: dict[str, Stat]
    requested_bytes: dict[str, Stat]
    oversize_allocations: Stat
    oversize_segments: Stat
    num_alloc_retries: int
    num_ooms: int
    num_sync_all_streams: int
    num_device_alloc: int
    num_device_free: int
    max_split_size: int


def raise_stat(n: Ints, kind: int, pool: int, amount: int) -> None:
    """Add ``amount`` to a kind, for ``pool`` and in all."""
    _raise(n, kind, amount)
    _raise(n, kind + STAT_FIELDS * (1 + pool), amount)


def lower_stat(n: Ints, kind: int, pool: int, amount: int) -> None:
    """Take ``amount`` from a kind, for ``pool`` and in all."""
    n[kind + CURRENT] -= amount
    n[kind + FELL] += amount
    of_pool = kind + STAT_FIELDS * (1 + pool)
    n[of_pool + CURRENT] -= amount
    n[of_pool + FELL] += amount


def raise_total(n: Ints, kind: int, amount: int) -> None:
    """Add to a kind that is not counted by pool (oversize blocks and segments)."""
    _raise(n, kind, amount)


def lower_total(n: Ints, kind: int, amount: int) -> None:
    """Take from a kind that is not counted by pool."""
    n[kind + CURRENT] -= amount
    n[kind + FELL] += amount


def _raise(n: Ints, at: int, amount: int) -> None:
    current = n[at + CURRENT] + amount
    n[at + CURRENT] = current
    n[at + ROSE] += amount
    n[at + PEAK] = max(n[at + PEAK], current)


def device_stats(n: Ints, max_split_size: int) -> DeviceStats:
    """Return the counters under PyTorch's names; ``max_split_size`` is the one the allocator started with."""
    stats: dict[str, object] = {}
    for index, name in enumerate(STAT_NAMES):
        at = STATS + index * STAT_ROW
        if name.startswith("oversize"):
            stats[name] = _stat(n, at)
        else:
            pools = ("all", "small_pool", "large_pool")
            stats[name] = {pool: _stat(n, at + STAT_FIELDS * i) for i, pool in enumerate(pools)}
    stats["num_alloc_retries"] = int(n[RETRIES])
    stats["num_ooms"] = int(n[OOMS])
    stats["num_sync_all_streams"] = int(n[SYNCS])
    stats["num_device_alloc"] = int(n[DEVICE_ALLOCS])
    stats["num_device_free"] = int(n[DEVICE_FREES])
    stats["max_split_size"] = -1 if max_split_size == UNLIMITED else max_split_size
    return stats  # type: ignore[return-value]


def _stat(n: Ints, at: int) -> Stat:
    names = ("current", "peak", "allocated", "freed")
    return {name: int(n[at + field]) for field, name in enumerate(names)}
