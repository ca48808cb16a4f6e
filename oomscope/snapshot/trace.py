"""A memory trace in columns, and a snapshot: the one language that every backend, file and report speaks.

A :class:`Trace` holds one device's events as numpy columns plus interned stacks; a :class:`Snapshot` adds the
segments as they stood when it was taken. Sizes are bytes. ``size`` is the *requested* size in alloc and free
events, the segment's size in segment events and the request in ``oom`` events, as in PyTorch's own schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oomscope.snapshot.provenance import Provenance
from oomscope.snapshot.sites import Frame, Stack

if TYPE_CHECKING:
    import numpy as np  # a program's process, which reports categories, may lack numpy
    from numpy.typing import NDArray

__all__ = ["Frame", "Stack"]  # re-exported, besides the definitions here


class Action(IntEnum):
    """What an event reports; the names are those of ``torch.cuda.memory._snapshot`` in lower case."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    USER_DEFINED = 9
    ANNOTATE = 10
    UNKNOWN = 11


REMARKS: Final = (Action.SNAPSHOT, Action.USER_DEFINED, Action.ANNOTATE, Action.UNKNOWN)
"""Events that say nothing of the allocator."""
NEUTRAL: Final = (Action.OOM, *REMARKS)
"""Events that leave segments and blocks as they are."""


class Category(IntEnum):
    """What a block is for. ``UNKNOWN`` is a row of its own in every table."""

    UNKNOWN = 0
    PARAMETER = 1
    GRADIENT = 2
    MAIN_GRADIENT = 3
    OPTIMIZER_STATE = 4
    ACTIVATION = 5
    TEMPORARY = 6
    WORKSPACE = 7
    COMMUNICATION = 8
    INPUT = 9
    KEPT = 10
    """A block that lives from one iteration to the next and is none of the above: a buffer, a list, a cache, a leak."""

    @property
    def label(self) -> str:
        """Return the name used in reports and JSON, such as ``optimizer_state``."""
        return self.name.lower()


class Moment(NamedTuple):
    """When in training an event happened. ``iteration`` and ``microbatch`` are -1 where unknown."""

    phase: str
    iteration: int
    microbatch: int


UNKNOWN_MOMENT: Final = Moment("", -1, -1)
AFTER_BACKWARD: Final = "after backward"
"""The phase that is recorded after a backward pass. No result shows it: the whole run tells which phase it was."""
OTHER: Final = "other"
"""The phase of what is neither forward, loss, backward nor optimizer, such as logging after a step."""
DEFAULT_POOL: Final = (0, 0)
"""Id of the memory pool of whatever is in no CUDA graph and no ``MemPool``."""
HIGHEST_ADDRESS: Final = 1 << 62
"""Highest address that the emulator can count to; devices have far fewer bits (Pascal 49, by its white paper)."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One device's events, oldest first, all columns of equal length n."""

    device: int
    action: NDArray[np.int8]
    address: NDArray[np.uint64]
    """Address of the block or segment; of ``oom`` events the free bytes of the device."""
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    time_us: NDArray[np.int64]
    """Times in microseconds; -1 where the file has none."""
    stack_id: NDArray[np.int32]
    """Index into ``stacks``; stack 0 is the empty one."""
    moment_id: NDArray[np.int32]
    """Index into ``moments``; moment 0 is unknown."""
    category: NDArray[np.int8]
    module_id: NDArray[np.int32]
    """Index into ``modules`` (dotted module path); 0 is unknown."""
    forward_stack_id: NDArray[np.int32]
    """For an allocation made in backward: the stack of the forward operation that caused it; else 0."""
    pool_id: NDArray[np.int32]
    """Index into ``pools``; 0 is the default pool."""
    stacks: tuple[Stack, ...] = ((),)
    moments: tuple[Moment, ...] = (UNKNOWN_MOMENT,)
    modules: tuple[str, ...] = ("",)
    pools: tuple[tuple[int, int], ...] = (DEFAULT_POOL,)
    names_pools: bool = False
    """Whether the events name their pools, as from torch of 2026 on; else ``pool_id`` is 0 and says nothing."""
    unknown_actions: tuple[str, ...] = ()
    """Action names that this version does not know, kept as ``UNKNOWN`` events and reported."""
    missing: tuple[str, ...] = ()
    """Data that the source did not record: ``time_us``, ``trace`` (all events) or ``frames``."""

    def __len__(self) -> int:
        return len(self.action)

    def moment_of(self, event: int) -> Moment:
        """Return when ``event`` happened; unknown before the first one."""
        return self.moments[self.moment_id[event]] if event >= 0 else UNKNOWN_MOMENT

    def attributed_stack(self, event: int) -> Stack:
        """Return the stack to which ``event`` is attributed: that of the forward behind it if known, else its own."""
        return self.stacks[self.forward_stack_id[event] or self.stack_id[event]]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of a segment at the end of the trace."""

    address: int
    size: int
    """Rounded size: what the block occupies."""
    requested_size: int
    """Bytes the program asked for; stale for inactive blocks."""
    state: str
    """State: ``active_allocated``, ``active_pending_free`` or ``inactive``."""
    stack: Stack = ()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A piece of device memory that the allocator holds (for expandable segments: one mapped run)."""

    device: int
    address: int
    total_size: int
    stream: int
    segment_type: str
    """Type: ``small`` or ``large``."""
    is_expandable: bool
    blocks: tuple[Block, ...]
    pool_id: tuple[int, int] = DEFAULT_POOL
    stack: Stack = ()
    requested_counter: int = field(default=-1, compare=False)
    """The allocator's own count of ``requested_size``, as the file states it; -1 where it states none."""

    @property
    def allocated_size(self) -> int:
        """Rounded bytes of blocks that the program holds."""
        return sum(block.size for block in self.blocks if block.state == "active_allocated")

    @property
    def active_size(self) -> int:
        """Rounded bytes of blocks held by the program or pending on a stream."""
        return sum(block.size for block in self.blocks if block.state != "inactive")

    @property
    def requested_size(self) -> int:
        """Requested bytes of active blocks."""
        return sum(block.requested_size for block in self.blocks if block.state != "inactive")


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """An external annotation: a named span's start or end."""

    name: str
    stage: str
    device: int
    time_us: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a snapshot file holds."""

    segments: tuple[Segment, ...]
    traces: tuple[Trace, ...]
    allocator_settings: dict[str, Any] = field(default_factory=dict)
    annotations: tuple[Annotation, ...] = ()
    missing: tuple[str, ...] = ()
    provenance: Provenance | None = None
    """Data on the recording by oomscope itself; None for a file from elsewhere."""
