"""A bucket of Megatron-FSDP: what a rank keeps of it permanently, and the whole of it while it is needed.

Source: Megatron-Core ``distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py``, ``DataParallelBuffer``,
``StorageResizeBasedBucketAllocator`` (parameters: one tensor, whose storage comes and goes) and
``TemporaryBucketAllocator`` (gradients: a tensor each time).

Which parameters are gathered and reduced as one, and where each lies in what is gathered: ``_get_parameter_groups`` and
``build_data_parallel_buffer_index`` of the same file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from oomscope.model.base.observer import Observer, Role
from oomscope.model.distributed.param_and_grad_buffer import Span
from oomscope.model.distributed.parameter_store import is_expert
from oomscope.model.parallel.parallel_state import ParallelState


@dataclass
class ParameterGroup:
    """Parameters of one dtype, of one unit or of none, that share a bucket."""

    unit: int | None
    """Transformer layer of the parameters, counted on this rank; None outside of layers."""
    expert: bool
    dtype: torch.dtype
    params: list[nn.Parameter] = field(default_factory=list)

    @property
    def chunk(self) -> int:
        """Elements that shards are cut at multiples of: whole rows of every matrix."""
        chunk = row_of(self.params[0])
        for param in self.params[1:]:
            row = row_of(param)
            if param.numel() >= chunk and not (chunk % row == 0 and param.numel() % chunk == 0):
                chunk = math.lcm(chunk, row)
        return chunk


def row_of(param: torch.Tensor) -> int:
    """Return the elements of a row; grouped experts, [E, out, in] here, are matrices [out, in] each upstream."""
    return param.shape[-1] if param.ndim > 1 else 1


def parameter_groups(
    named: Iterable[tuple[nn.Parameter, int | None]], *, bucket_size: int | None = None
) -> list[ParameterGroup]:
    """Return the groups in the order of their first parameters, each with its longest rows first."""
    kinds: dict[tuple[int | None, bool, torch.dtype], list[ParameterGroup]] = {}
    for param, unit in named:
        kind = (unit, is_expert(param), param.dtype)
        groups = kinds.setdefault(kind, [])
        is_full = bucket_size is not None and groups and sum(p.numel() for p in groups[-1].params) >= bucket_size
        if not groups or (unit is None and is_full):
            groups.append(ParameterGroup(*kind))
        groups[-1].params.append(param)
    result = [group for groups in kinds.values() for group in groups]
    for group in result:
        group.params.sort(key=row_of, reverse=True)
    return result


def lay_out_group(numels: Sequence[int], *, chunk: int, shards: int | None) -> tuple[list[Span], int]:
    """Return the place of each parameter of ``numels`` elements in the bucket, and the elements of the bucket.

    A parameter begins at a multiple of ``chunk``, or ends where the next chunk begins if what the one before it left
    of its last chunk is enough for its own odd end. Parameters below a chunk fill such gaps, else they come last. The
    bucket ends at a multiple of ``shards * chunk``; without shards it is not padded.
    """
    places: dict[int, int] = {}
    whole = [index for index, numel in enumerate(numels) if numel >= chunk]
    small = [index for index, numel in enumerate(numels) if numel < chunk]
    end = 0
    while whole:
        index = whole.pop(0)
        places[index] = end
        gap = end + numels[index]
        odd = numels[index] % chunk
        end += -(-numels[index] // chunk) * chunk
        if not odd:
            continue
        space = chunk - odd
        partner = next((i for i in whole if 0 < numels[i] % chunk <= space), None)
        if partner is not None:
            whole.remove(partner)
            places[partner] = end - numels[partner] % chunk
            space -= numels[partner] % chunk
            end += numels[partner] // chunk * chunk
        for fragment in list(small):
            if numels[fragment] <= space:
                places[fragment] = gap
                gap += numels[fragment]
                space -= numels[fragment]
                small.remove(fragment)
    for fragment in small:
        places[fragment] = end
        end += numels[fragment]
    spans = [Span(places[index], places[index] + numel) for index, numel in enumerate(numels)]
    return spans, end if shards is None else -(-end // (shards * chunk)) * shards * chunk


class ShardedBuffer:
    """The parameters of a group, or something of the same shapes.

    Buckets are shared over the ranks with the same parameters: padded for shards if it ``is_sharded``; if it
    ``is_distributed`` a rank keeps its shard alone, and :meth:`fetch` allocates the rest under ``role``.
    """

    def __init__(
        self,
        group: ParameterGroup,
        state: ParallelState,
        *,
        is_sharded: bool,
        is_distributed: bool,
        dtype: torch.dtype,
        role: Role,
        observer: Observer,
    ) -> None:
        rank, replicas, self.ranks = state.expert_dp if group.expert else state.dp_cp
        shards = replicas if is_sharded else None
        self.is_distributed = is_distributed and self.ranks is not None
        self.dtype = dtype
        self.spans, self.numel = lay_out_group([p.numel() for p in group.params], chunk=group.chunk, shards=shards)
        size = self.numel // (shards or 1)
        self.shard = Span(0, self.numel) if shards is None else Span(rank * size, (rank + 1) * size)
        self.kept = self.shard.numel if self.is_distributed else self.numel
        """Elements that this rank keeps, in ``data``."""
        self._is_sharded = is_sharded
        self._index = {param: index for index, param in enumerate(group.params)}
        self._role: Role = role
        self._observer = observer
        self._bucket: torch.Tensor | None = None
        self._device = group.params[0].device
        self.data = torch.empty(0, dtype=dtype, device=self._device)

    def fetch(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return all elements: the data itself where all of it is kept, else memory that :meth:`free` gives back."""
        dtype = dtype or self.dtype
        return self.data if not self.is_distributed and dtype == self.dtype else self.allocate(dtype)

    def allocate(self, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for all elements, the same until it is freed."""
        if self._bucket is None:
            self._bucket = torch.empty(self.numel, dtype=dtype, device=self._device)
        elif self._bucket.untyped_storage().nbytes() == 0:
            self._bucket.untyped_storage().resize_(self.numel * self._bucket.element_size())
        else:
            return self._bucket
        self._observer.role(self._role, [self._bucket])
        return self._bucket

    def free(self, *, forget: bool) -> None:
        """Empty the storage of what :meth:`allocate` gave; ``forget`` the tensor, unless views of it are to return."""
        if self._bucket is not None:
            self._bucket.untyped_storage().resize_(0)
            if forget:
                self._bucket = None

    def own_shard(self) -> torch.Tensor:
        """Return this rank's shard of what is kept."""
        return self.data if self.is_distributed else self.data[self.shard.start : self.shard.end]

    def item(self, bucket: torch.Tensor, param: nn.Parameter) -> torch.Tensor:
        """Return the elements of ``param`` in ``bucket``, in its shape."""
        span = self.spans[self._index[param]]
        return bucket[span.start : span.end].view(param.shape)

    def owned(self, param: nn.Parameter) -> Span:
        """Return the elements of ``param``, counted from its own start, in this rank's shard."""
        span = self.spans[self._index[param]]
        low, high = max(span.start, self.shard.start), min(span.end, self.shard.end)
        return Span(low - span.start, high - span.start) if low < high else Span(0, 0)

    def owned_item(self, param: nn.Parameter) -> torch.Tensor:
        """Return these elements of what is kept, flat; all of them in their shape where states are not shared."""
        if not self._is_sharded:
            return self.item(self.data, param)
        owned = self.owned(param)
        start = self.spans[self._index[param]].start + owned.start - (self.shard.start if self.is_distributed else 0)
        return self.data[start : start + owned.numel] if owned.numel else self.data[:0]

    def copy_in(self, param: nn.Parameter, value: torch.Tensor) -> None:
        """Keep what belongs here of the value of ``param``."""
        owned = self.owned(param)
        if self.is_distributed:
            self.owned_item(param).copy_(value.reshape(-1)[owned.start : owned.end])
        else:
            self.item(self.data, param).copy_(value)
