"""The device under the allocator: how much physical memory is left, and which addresses the driver hands out.

Physical memory is taken in pages of 2 MiB, by cudaMalloc and cuMemCreate alike, and runs out when this process and the
others together would exceed the device. Addresses are a matter of policy, because real drivers document none; up to
torch 2.11 they decide between equally large free blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.allocator.engine.constants import *
from oomscope.allocator.engine.memory import FIRST_RANGES, Memory, reserve_ranges
from oomscope.errors import UsageError

POLICIES = {"bump": POLICY_BUMP, "down": POLICY_DOWN, "firstfit": POLICY_FIRST_FIT, "recorded": POLICY_RECORDED}


@dataclass(frozen=True, slots=True)
class Driver:
    """A device as the allocator sees it.

    Args:
        total_bytes: what ``cudaMemGetInfo`` calls the total.
        other_bytes: memory of the device that is not this allocator's: the context, libraries, other processes.
        policy: ``bump`` gives ascending addresses and never one twice, ``down`` descending ones, ``firstfit`` the
            lowest address at which the size fits, ``recorded`` those of ``addresses``.
        addresses: ``(address, size)`` of the segments of a recorded run, in order; each request for ``size`` bytes
            gets the first one of that size not yet handed out, and a fresh address when there is none.

    Raises:
        UsageError: a negative size, a device too large to model, or an unknown policy.
    """

    total_bytes: int
    other_bytes: int = 0
    policy: str = "bump"
    addresses: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.total_bytes <= MAX_DEVICE_BYTES:
            remedy = "give less than 4 TiB" if self.total_bytes > 0 else "give more than 0 bytes"
            raise UsageError(f"a device of {self.total_bytes} bytes cannot be modelled", remedy=remedy)
        if self.other_bytes < 0:
            raise UsageError(f"other_bytes is {self.other_bytes}", remedy="give the bytes that others hold, 0 or more")
        if self.policy not in POLICIES:
            raise UsageError(f"unknown address policy {self.policy!r}", remedy=f"choose among {', '.join(POLICIES)}")

    def attach(self, m: Memory) -> None:
        """Write this device into the memory, a list, of an allocator that has not served anything."""
        m[TOTAL] = self.total_bytes
        m[OTHER] = self.other_bytes
        m[POLICY] = POLICIES[self.policy]
        m[NEXT_ADDRESS] = DOWN_BASE if self.policy == "down" else BUMP_BASE
        capacity = len(self.addresses) + FIRST_RANGES
        m.extend([0] * (2 * capacity))
        reserve_ranges(m, capacity)
        if self.policy == "recorded":
            for address, size in self.addresses:
                insert_range(m, m[RANGES_LIVE], address, size)
                m[NEXT_ADDRESS] = max(m[NEXT_ADDRESS], paged(address + size))


def paged(size: int) -> int:
    """Return ``size`` up to whole device pages."""
    return (size + DEVICE_PAGE - 1) // DEVICE_PAGE * DEVICE_PAGE


def device_free(m: Memory) -> int:
    """Return the bytes that ``cudaMemGetInfo`` would call free."""
    return max(m[TOTAL] - m[OTHER] - m[CHARGED], 0)


def charge(m: Memory, page: int, pages: int) -> bool:
    """Take physical memory for ``pages`` pages one by one; give them back and return False when one is not to be had.

    The peak of the device sees also the pages that were given back.
    """
    bytes_each = paged(page)
    left = max(m[TOTAL] - m[OTHER] - m[CHARGED], 0)
    got = min(pages, left // bytes_each) * bytes_each
    m[CHARGED_PEAK] = max(m[CHARGED_PEAK], m[CHARGED] + got)
    if got < pages * bytes_each:
        return False
    m[CHARGED] += got
    return True


def discharge(m: Memory, size: int) -> None:
    """Give physical memory back."""
    m[CHARGED] -= size


def place(m: Memory, size: int) -> int:
    """Return the address of a new segment or reservation."""
    extent = paged(size)
    if m[POLICY] == POLICY_FIRST_FIT:
        return _place_first_fit(m, extent)
    if m[POLICY] == POLICY_DOWN:
        m[NEXT_ADDRESS] -= extent
        return m[NEXT_ADDRESS]
    if m[POLICY] == POLICY_RECORDED:
        for index in range(m[RANGES_LIVE]):
            row = m[RANGES] + 2 * index
            if m[row + 1] == size:
                address = m[row]
                remove_range(m, index)
                return address
    address = m[NEXT_ADDRESS]
    m[NEXT_ADDRESS] = address + extent
    return address


def vacate(m: Memory, address: int) -> None:
    """Note that the segment or reservation at ``address`` is gone; only first fit reuses addresses."""
    if m[POLICY] == POLICY_FIRST_FIT:
        index = 0
        while m[m[RANGES] + 2 * index] != address:
            index += 1
        remove_range(m, index)


def insert_range(m: Memory, index: int, address: int, size: int) -> None:
    """Put a pair at ``index`` of the table of ranges."""
    row = m[RANGES] + 2 * index
    for i in range(m[RANGES] + 2 * m[RANGES_LIVE] - 1, row - 1, -1):
        m[i + 2] = m[i]
    m[row] = address
    m[row + 1] = size
    m[RANGES_LIVE] += 1


def remove_range(m: Memory, index: int) -> None:
    """Take the pair at ``index`` out of the table of ranges."""
    m[RANGES_LIVE] -= 1
    for i in range(m[RANGES] + 2 * index, m[RANGES] + 2 * m[RANGES_LIVE]):
        m[i] = m[i + 2]


def _place_first_fit(m: Memory, extent: int) -> int:
    """Return the lowest address with ``extent`` bytes before the next live range; the table holds them in order."""
    address = BUMP_BASE
    index = 0
    while index < m[RANGES_LIVE] and m[m[RANGES] + 2 * index] - address < extent:
        address = m[m[RANGES] + 2 * index] + m[m[RANGES] + 2 * index + 1]
        index += 1
    insert_range(m, index, address, extent)
    return address
