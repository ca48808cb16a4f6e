"""The log of what the allocator did with the driver, of the frees that had to wait, and of its failures."""

from __future__ import annotations

from oomscope.allocator.constants import (
    BASE,
    LIMIT,
    LOG,
    LOG_ACTION,
    LOG_ADDRESS,
    LOG_ALLOC_SIZE,
    LOG_BASE,
    LOG_LENGTH,
    LOG_OP,
    LOG_RANGE,
    LOG_ROW,
    LOG_SIZE,
    LOG_STREAM,
    NONE,
    OOM,
    OP,
    RANGE,
    STREAM,
    TOTAL,
)
from oomscope.allocator.driver import device_free
from oomscope.allocator.memory import Memory


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
