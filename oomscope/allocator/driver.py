"""The device under the allocator: how much physical memory is left, and which addresses the driver hands out.

Physical memory is taken in pages of 2 MiB, by cudaMalloc and cuMemCreate alike, and runs out when this process and the
others together would exceed the device. Addresses are a matter of policy, because real drivers document none; up to
torch 2.11 they decide between equally large free blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomscope.allocator.constants import (
    BUMP_BASE,
    CHARGED,
    CHARGED_PEAK,
    DEVICE_PAGE,
    DOWN_BASE,
    GAPS,
    MAX_DEVICE_BYTES,
    NEXT_ADDRESS,
    OTHER,
    POLICY,
    POLICY_BUMP,
    POLICY_DOWN,
    POLICY_FIRST_FIT,
    POLICY_RECORDED,
    TOTAL,
)
from oomscope.allocator.heap import Heap, Ints
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
            raise UsageError(f"a device of {self.total_bytes} bytes cannot be modelled", remedy="give up to 4 TiB")
        if self.other_bytes < 0:
            raise UsageError(f"other_bytes is {self.other_bytes}", remedy="give the bytes that others hold, 0 or more")
        if self.policy not in POLICIES:
            raise UsageError(f"unknown address policy {self.policy!r}", remedy=f"choose among {', '.join(POLICIES)}")

    def attach(self, heap: Heap) -> None:
        """Write this device into the state of an allocator that has not served anything."""
        n = heap.n
        n[TOTAL] = self.total_bytes
        n[OTHER] = self.other_bytes
        n[POLICY] = POLICIES[self.policy]
        n[NEXT_ADDRESS] = DOWN_BASE if self.policy == "down" else BUMP_BASE
        if self.policy == "recorded":
            for address, size in self.addresses:
                heap.ranges[2 * n[GAPS] : 2 * n[GAPS] + 2] = [address, size]
                n[GAPS] += 1
                n[NEXT_ADDRESS] = max(n[NEXT_ADDRESS], paged(address + size))


def paged(size: int) -> int:
    """Return ``size`` up to whole device pages."""
    return (size + DEVICE_PAGE - 1) // DEVICE_PAGE * DEVICE_PAGE


def device_free(n: Ints) -> int:
    """Return the bytes that ``cudaMemGetInfo`` would call free."""
    return max(n[TOTAL] - n[OTHER] - n[CHARGED], 0)


def charge(n: Ints, page: int, pages: int) -> bool:
    """Take physical memory for ``pages`` pages one by one; give them back and return False when one is not to be had.

    The peak of the device sees also the pages that were given back.
    """
    bytes_each = paged(page)
    left = max(n[TOTAL] - n[OTHER] - n[CHARGED], 0)
    got = min(pages, left // bytes_each) * bytes_each
    n[CHARGED_PEAK] = max(n[CHARGED_PEAK], n[CHARGED] + got)
    if got < pages * bytes_each:
        return False
    n[CHARGED] += got
    return True


def discharge(n: Ints, size: int) -> None:
    """Give physical memory back."""
    n[CHARGED] -= size


def place(heap: Heap, size: int) -> int:
    """Return the address of a new segment or reservation."""
    n = heap.n
    extent = paged(size)
    if n[POLICY] == POLICY_FIRST_FIT:
        return _place_first_fit(heap, extent)
    if n[POLICY] == POLICY_DOWN:
        n[NEXT_ADDRESS] -= extent
        return n[NEXT_ADDRESS]
    if n[POLICY] == POLICY_RECORDED:
        for i in range(n[GAPS]):
            if heap.ranges[2 * i + 1] == size:
                address = heap.ranges[2 * i]
                n[GAPS] -= 1
                for k in range(2 * i, 2 * n[GAPS]):
                    heap.ranges[k] = heap.ranges[k + 2]
                return address
    address = n[NEXT_ADDRESS]
    n[NEXT_ADDRESS] = address + extent
    return address


def vacate(heap: Heap, address: int) -> None:
    """Take note that the segment or reservation at ``address`` is gone; only first fit uses addresses again."""
    n = heap.n
    if n[POLICY] != POLICY_FIRST_FIT:
        return
    at = 0
    while heap.ranges[2 * at] != address:
        at += 1
    n[GAPS] -= 1
    for k in range(2 * at, 2 * n[GAPS]):
        heap.ranges[k] = heap.ranges[k + 2]


def _place_first_fit(heap: Heap, extent: int) -> int:
    """Return the lowest address with ``extent`` bytes before the next live range; ``ranges`` holds them in order."""
    n = heap.n
    ranges = heap.ranges
    address = BUMP_BASE
    at = 0
    while at < n[GAPS] and ranges[2 * at] - address < extent:
        address = ranges[2 * at] + ranges[2 * at + 1]
        at += 1
    for k in range(2 * n[GAPS] - 1, 2 * at - 1, -1):
        ranges[k + 2] = ranges[k]
    ranges[2 * at] = address
    ranges[2 * at + 1] = extent
    n[GAPS] += 1
    return address
