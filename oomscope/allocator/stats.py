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
from oomscope.allocator.memory import Memory

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


def raise_stat(m: Memory, kind: int, pool: int, amount: int) -> None:
    """Add ``amount`` to a kind, for ``pool`` and in all."""
    _raise(m, kind, amount)
    _raise(m, kind + STAT_FIELDS * (1 + pool), amount)


def lower_stat(m: Memory, kind: int, pool: int, amount: int) -> None:
    """Take ``amount`` from a kind, for ``pool`` and in all."""
    m[kind + CURRENT] -= amount
    m[kind + FELL] += amount
    of_pool = kind + STAT_FIELDS * (1 + pool)
    m[of_pool + CURRENT] -= amount
    m[of_pool + FELL] += amount


def raise_total(m: Memory, kind: int, amount: int) -> None:
    """Add to a kind that is not counted by pool (oversize blocks and segments)."""
    _raise(m, kind, amount)


def lower_total(m: Memory, kind: int, amount: int) -> None:
    """Take from a kind that is not counted by pool."""
    m[kind + CURRENT] -= amount
    m[kind + FELL] += amount


def _raise(m: Memory, at: int, amount: int) -> None:
    current = m[at + CURRENT] + amount
    m[at + CURRENT] = current
    m[at + ROSE] += amount
    m[at + PEAK] = max(m[at + PEAK], current)


def device_stats(m: Memory, max_split_size: int) -> DeviceStats:
    """Return the counters under PyTorch's names; ``max_split_size`` is the one the allocator started with."""
    stats: dict[str, object] = {}
    for index, name in enumerate(STAT_NAMES):
        at = STATS + index * STAT_ROW
        if name.startswith("oversize"):
            stats[name] = _stat(m, at)
        else:
            pools = ("all", "small_pool", "large_pool")
            stats[name] = {pool: _stat(m, at + STAT_FIELDS * i) for i, pool in enumerate(pools)}
    stats["num_alloc_retries"] = int(m[RETRIES])
    stats["num_ooms"] = int(m[OOMS])
    stats["num_sync_all_streams"] = int(m[SYNCS])
    stats["num_device_alloc"] = int(m[DEVICE_ALLOCS])
    stats["num_device_free"] = int(m[DEVICE_FREES])
    stats["max_split_size"] = -1 if max_split_size == UNLIMITED else max_split_size
    return stats  # type: ignore[return-value]


def _stat(m: Memory, at: int) -> Stat:
    names = ("current", "peak", "allocated", "freed")
    return {name: int(m[at + field]) for field, name in enumerate(names)}
