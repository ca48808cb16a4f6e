"""PyTorch's CUDA caching allocator, decision for decision, without a GPU and without torch.

``CachingAllocator`` serves one request at a time. ``AllocatorSettings`` is what PYTORCH_ALLOC_CONF means to a given
version of torch; ``Driver`` is the device underneath.
"""

from oomscope.allocator.allocator import (
    AllocatorBlock,
    AllocatorEvent,
    AllocatorSegment,
    CachingAllocator,
    DeviceOutOfMemory,
    Placement,
)
from oomscope.allocator.driver import Driver
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.stats import DeviceStats

__all__ = [
    "AllocatorBlock",
    "AllocatorEvent",
    "AllocatorSegment",
    "AllocatorSettings",
    "CachingAllocator",
    "DeviceOutOfMemory",
    "DeviceStats",
    "Driver",
    "Placement",
]
