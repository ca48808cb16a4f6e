"""How a bucket of gradients is summed over the ranks that hold the same parameters.

Without the distributed optimizer by one all-reduce, with it by a reduce-scatter into this rank's shard. Several
instances of the distributed optimizer (``num_distributed_optimizer_instances``) each shard over fewer ranks: the
reduce-scatter runs inside an instance, and an all-reduce of the shard over the instances follows it. All of it is in
place, so that no byte depends on the number of instances but those of the shards (Megatron-Core
``distributed/param_and_grad_buffer.py``, ``start_grad_sync``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from oomscope.model.base.operations import reduce_scatter


class GradReduction:
    """Sums buckets over replicas.

    Args:
        group: ranks that share the optimizer's states, or without shards all with the same parameters; None for one.
        instances: the ranks with this rank's shard in every instance of the optimizer; None for one instance.
        shards: ranks that share the optimizer's states, None without the distributed optimizer.
        rank: this rank's place in ``group``.
        overlap: let the sums run beside the backward pass.
        device: where the gradients are.
    """

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None,
        instances: dist.ProcessGroup | None,
        shards: int | None,
        rank: int,
        overlap: bool,
        device: torch.device,
    ) -> None:
        self._group = group
        self._instances = instances
        self._shards = shards
        self._rank = rank
        self._overlap = overlap
        self._module: Any = None
        if instances is not None and overlap and device.type not in ("cpu", "meta"):
            self._module = torch.get_device_module(device)
            self._stream: Any = self._module.Stream(device=device)

    def shard(self, data: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a bucket's gradients or parameters."""
        size = data.numel() // (self._shards or 1)
        return data[self._rank * size : (self._rank + 1) * size]

    def launch(self, grads: torch.Tensor) -> dist.Work | None:
        """Begin to sum a bucket; return what to wait for, None where :meth:`join` is enough.

        Two sums that follow one another go to a stream of their own, which waits for each of them in turn.
        """
        if self._instances is None:
            return self._reduce(grads, async_op=self._overlap)
        if self._module is None:
            self._reduce_over_instances(grads)
            return None
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            self._reduce_over_instances(grads)
        return None

    def join(self) -> None:
        """Let what the current stream does from now on come after all sums on the stream of their own."""
        if self._module is not None:
            self._module.current_stream().wait_stream(self._stream)

    def _reduce_over_instances(self, grads: torch.Tensor) -> None:
        self._reduce(grads, async_op=False)
        dist.all_reduce(self.shard(grads), group=self._instances)

    def _reduce(self, grads: torch.Tensor, *, async_op: bool) -> dist.Work | None:
        if self._group is None:
            return None
        if self._shards is None:
            work: dist.Work | None = dist.all_reduce(grads, group=self._group, async_op=async_op)
            return work
        return reduce_scatter(self.shard(grads), grads, self._group, async_op=async_op)
