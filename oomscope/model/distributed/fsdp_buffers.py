"""A bucket of Megatron-FSDP: what a rank keeps of it for good, and the whole of it while it is needed.

Source: Megatron-Core ``distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py``, ``DataParallelBuffer``,
``StorageResizeBasedBucketAllocator`` (parameters: one tensor, whose storage comes and goes) and
``TemporaryBucketAllocator`` (gradients: a tensor each time).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.base.observer import Observer, Role
from oomscope.model.distributed.fsdp_groups import ParameterGroup, lay_out_group
from oomscope.model.distributed.param_and_grad_buffer import Span


class ShardedBuffer:
    """The parameters of a group, or something of the same shapes.

    Args:
        group: whose parameters.
        shards: over the ranks of ``ranks``; None keeps all of it, unpadded, on each rank.
        is_distributed: this rank keeps its shard alone, and :meth:`fetch` allocates the rest.
        dtype: of what is kept.
        role: what :meth:`fetch` tells of its allocations.
    """

    def __init__(
        self,
        group: ParameterGroup,
        *,
        shards: int | None,
        rank: int,
        ranks: dist.ProcessGroup | None,
        is_distributed: bool,
        dtype: torch.dtype,
        role: Role,
        observer: Observer,
    ) -> None:
        self.ranks = ranks
        self.is_distributed = is_distributed and ranks is not None
        self.dtype = dtype
        self.spans, self.numel = lay_out_group([p.numel() for p in group.params], chunk=group.chunk, shards=shards)
        size = self.numel // (shards or 1)
        self.shard = Span(0, self.numel) if shards is None else Span(rank * size, (rank + 1) * size)
        self._shards_states = shards is not None
        self._index = {param: index for index, param in enumerate(group.params)}
        self._role: Role = role
        self._observer = observer
        self._bucket: torch.Tensor | None = None
        self._device = group.params[0].device
        self.data = torch.empty(0, dtype=dtype, device=self._device)

    @property
    def kept(self) -> int:
        """Elements that this rank keeps."""
        return self.shard.numel if self.is_distributed else self.numel

    @property
    def allocated(self) -> bool:
        """Whether :meth:`allocate` has given memory that is not freed yet."""
        return self._bucket is not None and self._bucket.untyped_storage().nbytes() > 0

    def keep(self, data: torch.Tensor) -> None:
        """Keep in ``data``, of :attr:`kept` elements."""
        self.data = data

    def fetch(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return all elements: the data itself where all of it is kept, else memory that :meth:`free` gives back."""
        dtype = dtype or self.dtype
        return self.data if not self.is_distributed and dtype == self.dtype else self.allocate(dtype)

    def allocate(self, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for all elements, the same until it is freed."""
        if self._bucket is None:
            self._bucket = torch.empty(self.numel, dtype=dtype, device=self._device)
        elif not self.allocated:
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
        if not self._shards_states:
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
