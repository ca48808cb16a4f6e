"""How much of the device was free when a request failed: the address of an ``oom`` event, unless nobody told.

A module of its own, since the process that reads untrusted files knows no numpy and thus no trace.
"""

from __future__ import annotations

from typing import Final

FREE_UNKNOWN: Final = 2**64 - 1
"""In place of an ``oom`` event's free bytes where the recording does not tell them, which is not the same as none."""


def free_told(address: int) -> int | None:
    """Return the free device bytes that an ``oom`` event's address stands for; None where they are unknown."""
    return None if address == FREE_UNKNOWN else address
