"""The counters that ``torch.cuda.memory_stats`` shows, and the log of what the allocator did with the driver.

Every kind counts ``current``, ``peak``, ``allocated`` (the sum of all increases) and ``freed`` (of all decreases), for
both pools and for all of them together (c10/core/CachingDeviceAllocator.h). The log holds also the frees that had to
wait, and the failures.
"""

from __future__ import annotations

from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.driver import device_free
from oomscope.allocator.engine.memory import Memory


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


def raise_total(m: Memory, kind: int) -> None:
    """Count one more of a kind that is not counted by pool (oversize blocks and segments)."""
    _raise(m, kind, 1)


def lower_total(m: Memory, kind: int) -> None:
    """Count one less of a kind that is not counted by pool."""
    m[kind + CURRENT] -= 1
    m[kind + FELL] += 1


def _raise(m: Memory, at: int, amount: int) -> None:
    current = m[at + CURRENT] + amount
    m[at + CURRENT] = current
    m[at + ROSE] += amount
    m[at + PEAK] = max(m[at + PEAK], current)


def log_block(m: Memory, action: int, block: int, address: int, size: int) -> None:
    """Append an event about ``size`` bytes at ``address`` in the segment of ``block``."""
    row = _append(m, action, address, size)
    m[row + LOG_STREAM] = m[block + STREAM]
    m[row + LOG_RANGE] = m[block + RANGE]
    m[row + LOG_BASE] = m[block + BASE]


def log_oom(m: Memory, rounded: int, alloc_size: int, stream: int) -> None:
    """Append a failure: as address the free bytes of the device, as base its total, or the limit where one is set."""
    row = _append(m, OOM, device_free(m), rounded)
    m[row + LOG_STREAM] = stream
    m[row + LOG_RANGE] = NONE
    m[row + LOG_BASE] = m[TOTAL] if m[LIMIT] == NONE else m[LIMIT]
    m[row + LOG_ALLOC_SIZE] = alloc_size


def _append(m: Memory, action: int, address: int, size: int) -> int:
    row = m[LOG] + m[LOG_LENGTH] * LOG_ROW
    m[LOG_LENGTH] += 1
    m[row + LOG_OP] = m[OP]
    m[row + LOG_ACTION] = action
    m[row + LOG_ADDRESS] = address
    m[row + LOG_SIZE] = size
    return row
