"""PyTorch's CUDA caching allocator, decision for decision, without a GPU and without torch.

``replay`` takes a whole trace, and is compiled where it is long. ``AllocatorSettings`` is what
PYTORCH_ALLOC_CONF means to a given version of torch; ``Driver`` is the device underneath.
"""

from oomscope.allocator.engine.driver import Driver
from oomscope.allocator.replay import Held, Replay, ReplayOp, ReplayOutcome, replay
from oomscope.allocator.settings import AllocatorSettings
from oomscope.allocator.state import AllocatorState
from oomscope.allocator.views import AllocatorBlock, AllocatorEvent, AllocatorSegment

__all__ = [
    "AllocatorBlock",
    "AllocatorEvent",
    "AllocatorSegment",
    "AllocatorSettings",
    "AllocatorState",
    "Driver",
    "Held",
    "Replay",
    "ReplayOp",
    "ReplayOutcome",
    "replay",
]
