"""When Megatron-FSDP gathers parameters and reduces gradients, and when it lets go of the memory for it.

Parameters are gathered ahead of the computation, up to a number of elements, and a unit's are dropped behind its
forward and its backward. Whole gradients wait in a queue, also up to a number of elements: below that nothing of it is
freed before the end of a backward.

Source: Megatron-Core ``distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py``, ``AllGatherPipeline`` and
``GradReducePipeline``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto

import torch
import torch.distributed as dist

from oomscope.model.base.device import CommunicationStream
from oomscope.model.base.operations import all_gather, reduce_scatter
from oomscope.model.distributed.fsdp_buffers import ParameterGroup, ShardedBuffer


class Status(Enum):
    """Status of a bucket of parameters."""

    EMPTY = auto()
    KEPT = auto()
    """Allocated, with the values of the step before."""
    COMMUNICATING = auto()
    READY = auto()


class GatherPipeline:
    """Gathers the buckets of parameters, ``ahead`` elements before they are needed, the last bucket of them whole."""

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        buffers: Sequence[ShardedBuffer],
        *,
        ahead: int,
        device: torch.device,
    ) -> None:
        self._groups = groups
        self._buffers = buffers
        self._ahead = ahead
        self._stream = CommunicationStream(device)
        self.status = [Status.EMPTY for _ in groups]
        self._works: dict[int, dist.Work] = {}
        self._releasable: set[int] = set()
        """Units that are freed before the next bucket is gathered."""

    def gather(self, needed: Collection[int], *, forward: bool | None) -> None:
        """Begin to gather the groups ``needed``, and those behind them ``forward`` or backward (None: none)."""
        if not needed:
            return
        self._releasable -= set(needed)
        wanted = set(needed) if forward is None else self._with_prefetched(needed, forward=forward)
        for index in sorted(wanted):
            if self.status[index] in (Status.EMPTY, Status.KEPT):
                self._begin(index)

    def _with_prefetched(self, needed: Collection[int], *, forward: bool) -> set[int]:
        wanted = set(needed)
        step = 1 if forward else -1
        fetched = 0
        while fetched < self._ahead:
            index = min(wanted) if forward else max(wanted)
            while index in wanted:
                index += step
            if not 0 <= index < len(self._groups):
                break
            together = self.together(index) - wanted
            wanted |= together
            fetched += sum(self._buffers[other].numel for other in together)
        return wanted

    def together(self, index: int) -> set[int]:
        """Return the groups that are communicated with group ``index``: those of its unit, experts apart."""
        group = self._groups[index]
        if group.unit is None:
            return {index}
        alike = ((other.unit, other.expert) == (group.unit, group.expert) for other in self._groups)
        return {other for other, same in enumerate(alike) if same}

    def _begin(self, index: int) -> None:
        self._recycle()
        buffer = self._buffers[index]
        with torch.no_grad(), self._stream.behind_computation():
            bucket = buffer.fetch()
            for param in self._groups[index].params:
                param.data = buffer.item(bucket, param)
            self.status[index] = Status.COMMUNICATING
            if buffer.ranks is not None:
                work = all_gather(bucket, buffer.own_shard(), buffer.ranks, async_op=True)
                if work is not None:
                    self._works[index] = work

    def wait(self, indices: Iterable[int]) -> None:
        """Let the computation wait for buckets that are on their way."""
        for index in indices:
            if self.status[index] is not Status.COMMUNICATING:
                continue
            if index in self._works:
                self._works.pop(index).wait()
            self.status[index] = Status.READY

    def release(self, indices: Collection[int], *, lazily: bool = False) -> None:
        """Free buckets, or ``lazily`` when the next one is gathered."""
        for index in indices:
            if self.status[index] is Status.EMPTY:
                continue
            if lazily:
                self._releasable.add(index)
                continue
            self.wait([index])
            self._buffers[index].free(forget=False)
            self.status[index] = Status.EMPTY
            self._releasable.discard(index)

    def release_units_lazily(self) -> None:
        """Free every unit's bucket before the next one is gathered, unless it is needed first."""
        self._releasable |= {index for index, group in enumerate(self._groups) if group.unit is not None}

    def _recycle(self) -> None:
        self.release(sorted(self._releasable))
        self._releasable.clear()

    def reset(self) -> None:
        """Free all units; what is in none stays allocated, with stale values."""
        indices = range(len(self._groups))
        self.wait(indices)
        self.release([index for index in indices if self._groups[index].unit is not None])
        self._releasable.clear()
        for index in indices:
            if self._groups[index].unit is None:
                self.status[index] = Status.KEPT


class ReducePipeline:
    """Reduces the buckets of gradients into what each rank keeps.

    ``together`` has for each group those that are reduced with it; gradients travel as ``comm_dtype`` (None: as they
    are kept), their sums are scaled, and ``capacity`` elements of whole ones may wait.
    """

    def __init__(
        self,
        buffers: Sequence[ShardedBuffer],
        together: Sequence[Collection[int]],
        *,
        comm_dtype: torch.dtype | None,
        scale: float,
        capacity: int,
        device: torch.device,
    ) -> None:
        self._buffers = buffers
        self._together = together
        self._comm_dtype = comm_dtype
        self._scale = scale
        self._capacity = capacity
        self._stream = CommunicationStream(device)
        self._arrived = [0 for _ in buffers]
        self._queue: list[int] = []

    def whole_gradient(self, index: int) -> torch.Tensor:
        """Return where the gradients of group ``index`` are collected."""
        buffer = self._buffers[index]
        return buffer.fetch(self._comm_dtype if buffer.is_distributed else None)

    def arrive(self, index: int) -> None:
        """Count a gradient; the last one of a unit sets off its reduction."""
        self._arrived[index] += 1
        together = sorted(self._together[index])
        if all(self._arrived[other] == len(self._buffers[other].spans) for other in together):
            self._free(self._capacity)
            self._reduce(together)

    def reduce_all(self) -> None:
        """Reduce every bucket at once."""
        self._reduce(list(range(len(self._buffers))))
        self.reset()

    def reset(self) -> None:
        """Wait for all reductions and free the whole gradients."""
        self._free(0)
        for buffer in self._buffers:
            buffer.free(forget=True)
        self._arrived = [0 for _ in self._buffers]

    def _free(self, capacity: int) -> None:
        while sum(self._buffers[index].numel for index in self._queue) > capacity:
            self._stream.join()
            index = self._queue.pop(0)
            self._buffers[index].free(forget=True)
            self._arrived[index] = 0

    @torch.no_grad()
    def _reduce(self, indices: Sequence[int]) -> None:
        with self._stream.behind_computation():
            for index in indices:
                self._reduce_one(self._buffers[index], self.whole_gradient(index))
        self._queue += indices

    def _reduce_one(self, buffer: ShardedBuffer, whole: torch.Tensor) -> None:
        is_cast = not buffer.is_distributed and self._comm_dtype not in (None, buffer.dtype)
        if is_cast and self._comm_dtype is not None:
            whole = buffer.allocate(self._comm_dtype).copy_(whole)
        if self._scale != 1:
            whole.mul_(self._scale)
        reduced = whole[buffer.shard.start : buffer.shard.end]
        if buffer.ranks is not None:
            if buffer.shard.numel == buffer.numel:
                dist.all_reduce(whole, group=buffer.ranks)
            else:
                reduce_scatter(reduced, whole, buffer.ranks)
        if buffer.is_distributed:
            buffer.own_shard().add_(reduced)
        elif is_cast:
            buffer.own_shard().copy_(reduced)
