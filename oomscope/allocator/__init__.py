"""PyTorch's CUDA caching allocator, decision for decision, without a GPU and without torch.

``CachingAllocator`` serves one request at a time; ``replay`` takes a whole trace, and is compiled where it is long.
``AllocatorSettings`` is what PYTORCH_ALLOC_CONF means to a given
version of torch; ``Driver`` is the device underneath.
"""

from oomscope.allocator.allocator import CachingAllocator, DeviceOutOfMemory, Placement
from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.engine.stats import DeviceStats
from oomscope.allocator.replay import Held, Replay, ReplayOp, ReplayOutcome, replay
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.views import AllocatorBlock, AllocatorEvent, AllocatorSegment

__all__ = [
    "AllocatorBlock",
    "AllocatorEvent",
    "AllocatorSegment",
    "AllocatorSettings",
    "CachingAllocator",
    "DeviceOutOfMemory",
    "DeviceStats",
    "Driver",
    "Held",
    "Placement",
    "Replay",
    "ReplayOp",
    "ReplayOutcome",
    "replay",
]
