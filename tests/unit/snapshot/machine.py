"""A program on an emulated card, recorded as the real allocator records it: what the verdicts are tested on."""

from __future__ import annotations

from oomscope.allocator import AllocatorSettings, Driver
from oomscope.snapshot.judge.verdict import FailedRequest
from oomscope.snapshot.replay.replay import Device, segments_of
from oomscope.snapshot.trace import Action, Category, Frame, Moment, Segment, Stack, Trace
from tests.caching_allocator import CachingAllocator, DeviceOutOfMemory
from tests.trace_builder import TraceBuilder

ACTIONS = {action.name.lower(): action for action in Action}


class Machine:
    """Runs requests on the emulator and writes the trace of them.

    A pool ``(0, n)`` is the emulator's private pool n. Events name their pools unless ``names_pools`` is False.
    ``failure`` is the first request that failed; the segments are copied at that instant. ``waited`` says that a
    request was served only after a wait for other streams, which a trace does not tell from blocks freed in time.
    """

    def __init__(
        self,
        total: int,
        conf: str = "",
        *,
        non_torch: int = 0,
        others: int = 0,
        fraction=None,
        torch_version="2.13",
        names_pools: bool = True,
        address_policy: str = "bump",
    ) -> None:
        self.device = Device(
            total_bytes=total, non_torch_bytes=non_torch, other_process_bytes=others, fraction=fraction
        )
        self.conf = conf
        self.allocator = CachingAllocator(
            AllocatorSettings.parse(conf, torch_version=torch_version),
            Driver(total, non_torch + others, policy=address_policy),
            fraction=fraction,
            event_lag=None,
        )
        self.builder = TraceBuilder()
        self.failure: FailedRequest | None = None
        self.moment = Moment("forward", 0, 0)
        self.waited = False
        self.names_pools = names_pools
        self._size: dict[int, tuple[int, int, int]] = {}
        self._clock = 0

    def alloc(
        self,
        size: int,
        stream: int = 0,
        *,
        line: int = 1,
        category: Category = Category.ACTIVATION,
        stack: Stack | None = None,
        pool: int = 0,
    ) -> int | None:
        """Return the address, or None where it failed."""
        if stack is None:
            stack = (Frame("/user/train.py", line, "step"),)
        pending, retries = self.allocator.active_bytes > self.allocator.allocated_bytes, self.retries
        try:
            address = self.allocator.malloc(size, stream, pool).address
        except DeviceOutOfMemory as error:
            self._drain(stack)
            event = self._event(Action.OOM, error.device_free, size, stream, stack, pool=pool)
            self.failure = self.failure or FailedRequest(requested_bytes=size, event=event, segments=self.segments())
            return None
        self.waited |= pending and self.retries > retries
        self._drain(stack)
        self._event(Action.ALLOC, address, size, stream, stack, category, pool=pool)
        self._size[address] = (size, stream, pool)
        return address

    def free(self, address: int) -> None:
        size, stream, pool = self._size[address]
        self._event(Action.FREE_REQUESTED, address, size, stream, pool=pool)
        self.allocator.free(address)
        pending = any(
            block.address == address and block.state == "active_pending_free"
            for segment in self.allocator.segments()
            for block in segment.blocks
        )
        if not pending:
            self._event(Action.FREE_COMPLETED, address, size, stream, pool=pool)
        self._drain()

    @property
    def retries(self) -> int:
        return self.allocator.num_alloc_retries

    def use_on(self, address: int, stream: int) -> None:
        self.allocator.record_stream(address, stream)

    def synchronize(self) -> None:
        self.allocator.synchronize()

    def empty_cache(self) -> None:
        """Called from a line of its own, as the stack tells."""
        self.allocator.empty_cache()
        self._drain((Frame("/x/site-packages/torch/cuda/memory.py", 1, "empty_cache"),))

    def release_pool(self, pool: int) -> None:
        """As when the last graph that used it is reset: the trace says nothing of it."""
        self.allocator.release_pool(pool)

    def drop_pool(self, pool: int) -> None:
        """As when a ``MemPool`` dies: what is cached of it goes back to the driver."""
        self.allocator.release_pool(pool)
        self.allocator.empty_pool(pool)
        self._drain((Frame("/user/train.py", 2, "tidy_up"),))

    def segments(self) -> tuple[Segment, ...]:
        return segments_of(self.allocator.segments(), pool_ids=tuple((0, number) for number in range(8)))

    def trace(self) -> Trace:
        return self.builder.build()

    def _drain(self, stack=()) -> None:
        for event in self.allocator.drain_events():
            if event.action == "oom":
                continue
            size = self._size[event.address][0] if event.action == "free_completed" else event.size
            self._event(ACTIONS[event.action], event.address, size, event.stream, stack, pool=event.pool)

    def _event(self, action, address, size, stream, stack=(), category=Category.UNKNOWN, *, pool=0) -> int:
        self._clock += 1
        named = (0, pool if self.names_pools else 0)
        return self.builder.event(action, address, size, stream, self._clock, stack, self.moment, category, pool=named)
