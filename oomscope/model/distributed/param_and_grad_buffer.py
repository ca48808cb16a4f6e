"""Contiguous gradient buffers: every parameter's ``main_grad`` is a view of one tensor, and so is each bucket.

Autograd's own ``param.grad`` lives only until the hook has added it to ``main_grad``; gradient accumulation and the
in-place reduction over data-parallel ranks therefore cost no further bytes. With the distributed optimizer the
parameters move into a contiguous buffer of the same layout, so that shards can be gathered in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.device import CommunicationStream
from oomscope.model.base.observer import Observer
from oomscope.model.base.operations import all_gather, reduce_scatter
from oomscope.model.distributed.parameter_store import ParameterStore, is_expert, is_shared_embedding
from oomscope.model.fp8.quantized import bytes_of, quantized_of
from oomscope.model.parallel.parallel_state import ParallelState

PARAM_ALIGNMENT = 64
"""Elements that a parameter's start is aligned to under the distributed optimizer (Megatron-Core
``param_and_grad_buffer.py``)."""
BUCKET_ALIGNMENT = 128
"""A bucket's end is aligned to the least common multiple of this and the data-parallel size (same source)."""


class Span(NamedTuple):
    """Elements [start, end) of a buffer."""

    start: int
    end: int

    @property
    def numel(self) -> int:
        """Elements in the span."""
        return self.end - self.start


class Layout(NamedTuple):
    """Where parameters and buckets lie in a buffer."""

    params: tuple[Span, ...]
    buckets: tuple[Span, ...]

    @property
    def numel(self) -> int:
        """Elements of the buffer, padding included."""
        return self.buckets[-1].end if self.buckets else 0


def lay_out(
    numels: Sequence[int],
    *,
    shards: int | None,
    bucket_size: int | None = None,
    own_bucket: Sequence[bool] | None = None,
) -> Layout:
    """Place parameters of ``numels`` elements one after the other and cut the buffer into buckets, as upstream.

    Args:
        numels: elements of each parameter, in the order of the buffer.
        shards: ranks that share the optimizer's states, None without the distributed optimizer: then nothing is padded.
        bucket_size: elements after which a bucket is closed; None for a single bucket.
        own_bucket: parameters that share a bucket with no other.
    """
    alone = own_bucket if own_bucket is not None else [False] * len(numels)
    param_alignment = PARAM_ALIGNMENT if shards is not None else 1
    bucket_alignment = math.lcm(shards, BUCKET_ALIGNMENT) if shards is not None else 1
    params: list[Span] = []
    buckets: list[Span] = []
    opened = 0
    for numel, separate in zip(numels, alone, strict=True):
        start = _align(params[-1].end if params else 0, param_alignment)
        start = max(start, opened)
        if separate and start > opened:
            start = _align(start, bucket_alignment)
            buckets.append(Span(opened, start))
            opened = start
        params.append(Span(start, start + numel))
        if separate or (bucket_size is not None and params[-1].end - opened >= bucket_size):
            buckets.append(Span(opened, _align(params[-1].end, bucket_alignment)))
            opened = buckets[-1].end
    if params and params[-1].end > opened:
        buckets.append(Span(opened, _align(params[-1].end, bucket_alignment)))
    return Layout(tuple(params), tuple(buckets))


@dataclass
class Bucket:
    """A stretch of a buffer that is reduced, and under the distributed optimizer gathered, in one call."""

    span: Span
    grads: torch.Tensor
    values: torch.Tensor | None
    waiting: set[nn.Parameter] = field(default_factory=set)
    """Parameters whose gradients of the last microbatch are still to come."""
    work: dist.Work | None = None
    launched: bool = False


class GradBuffer(ParameterStore):
    """The main gradients of the parameters of one dtype (and, under the distributed optimizer, the parameters).

    Each parameter's ``main_grad`` points into it. A bucket is summed over the replicas by one all-reduce, under the
    distributed optimizer by a reduce-scatter into this rank's shard. Where several instances of that optimizer shard
    over fewer ranks each, an all-reduce of the shard over the instances follows (Megatron-Core
    ``distributed/param_and_grad_buffer.py``, ``start_grad_sync``). All of it is in place.
    """

    def __init__(
        self, params: Sequence[nn.Parameter], config: Config, state: ParallelState, *, bucket_size: int | None = None
    ) -> None:
        optimizer, expert, device = config.optimizer, is_expert(params[0]), params[0].device
        self.params = tuple(params)
        self._rank, replicas, self._group = state.intra_expert_dp if expert else state.intra_dp_cp
        self._instances = state.inter_dist_opt.group
        self._scale = 1 / state.dp_cp.size
        self._overlap = optimizer.overlap_grad_reduce
        # two sums that follow one another go to a stream of their own, which waits for each of them in turn
        has_stream = self._instances is not None and self._overlap
        self._stream = CommunicationStream(device if has_stream else torch.device("cpu"))
        self.shards = replicas if optimizer.use_distributed_optimizer else None
        """Ranks that share the optimizer's states; None without the distributed optimizer."""
        self.layout = lay_out(
            [param.numel() for param in params],
            shards=self.shards,
            bucket_size=bucket_size,
            own_bucket=[
                self.shards is not None and state.pp.size > 1 and is_shared_embedding(param) for param in params
            ],
        )
        numel, value_dtype = self.layout.numel, bytes_of(params[0]).dtype
        self.values = None if self.shards is None else torch.zeros(numel, dtype=value_dtype, device=device)
        grad_dtype = torch.float32 if config.precision.grad_reduce_in_fp32 else params[0].dtype
        self.grads = torch.zeros(numel, dtype=grad_dtype, device=device)
        for param, span in zip(self.params, self.layout.params, strict=True):
            if self.values is not None:
                _move(param, self.values[span.start : span.end])
            param.main_grad = self.grads[span.start : span.end].view(param.shape)  # type: ignore[attr-defined]
            param.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        self.buckets = [
            Bucket(
                span=span,
                grads=self.grads[span.start : span.end],
                values=None if self.values is None else self.values[span.start : span.end],
            )
            for span in self.layout.buckets
        ]
        self._bucket_of = {
            param: bucket
            for param, span in zip(self.params, self.layout.params, strict=True)
            for bucket in self.buckets
            if bucket.span.start <= span.start < bucket.span.end
        }

    def report_roles(self, observer: Observer) -> None:
        """Report main gradients to ``observer``."""
        observer.role("main_gradient", [self.grads])

    def zero(self) -> None:
        """Discard all gradients."""
        self.grads.zero_()
        self.is_last_microbatch = False
        for param in self.params:
            param.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        for bucket in self.buckets:
            bucket.launched = False
            bucket.waiting = {param for param in self.params if self._bucket_of[param] is bucket}

    def accumulate(self, param: nn.Parameter) -> None:
        """Add ``param.grad`` to the main gradient and drop it.

        What the main gradient has already is not added: then ``param.grad`` is a placeholder, or with
        ``zero_out_wgrad`` (a tied word table, whose gradient has another part) the sum of one and the rest.
        """
        if param.grad is not None:
            if not _is_placeholder(param):
                param.main_grad.add_(param.grad)  # type: ignore[attr-defined]
            param.grad = None
        if self.is_last_microbatch and self._overlap:
            bucket = self._bucket_of[param]
            bucket.waiting.discard(param)
            if not bucket.waiting:
                self._launch(bucket)

    def reduce(self) -> None:
        """Make the main gradients the mean over the data-parallel ranks, in place.

        Under the distributed optimizer only this rank's shard of each bucket is that afterwards.
        """
        for bucket in self.buckets:
            if not bucket.launched:
                self._launch(bucket)
        self.await_gather()
        self._stream.join()

    def gather(self, *, overlap: bool = False) -> None:
        """Fetch the other ranks' shards of the updated parameters, in place (distributed optimizer).

        With ``overlap`` this only begins; :meth:`await_gather` ends it. In place too, so that it costs no byte.
        """
        for bucket in reversed(self.buckets):
            if self._group is not None and bucket.values is not None:
                bucket.work = all_gather(bucket.values, self._shard(bucket.values), self._group, async_op=overlap)

    def await_gather(self) -> None:
        """Wait for all buckets that are on their way."""
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None

    def value(self, index: int) -> torch.Tensor:
        """Return the elements of parameter ``index`` that this rank updates."""
        return self._part(bytes_of(self.params[index]), index)

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the main gradient of :meth:`value`, which stays where it is."""
        return self._part(self.whole_grad(index), index)

    def whole_grad(self, index: int) -> torch.Tensor:
        """Return the main gradient of parameter ``index``."""
        grad: torch.Tensor = self.params[index].main_grad  # type: ignore[attr-defined]
        return grad

    def owned(self, index: int) -> Span:
        """Return the elements of parameter ``index``, counted from its own start, that this rank updates."""
        span = self.layout.params[index]
        if self.shards is None:
            return Span(0, span.numel)
        bucket = self._bucket_of[self.params[index]].span
        size = bucket.numel // self.shards
        start = bucket.start + self._rank * size
        low, high = max(span.start, start), min(span.end, start + size)
        return Span(low - span.start, high - span.start) if low < high else Span(0, 0)

    def _part(self, whole: torch.Tensor, index: int) -> torch.Tensor:
        if self.shards is None:
            return whole
        owned = self.owned(index)
        return whole.view(-1)[owned.start : owned.end]

    def _shard(self, data: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a bucket's gradients or parameters."""
        size = data.numel() // (self.shards or 1)
        return data[self._rank * size : (self._rank + 1) * size]

    def _launch(self, bucket: Bucket) -> None:
        """Begin to sum a bucket over the replicas."""
        bucket.launched = True
        if self._scale != 1:
            bucket.grads.mul_(self._scale)
        if self._instances is None:
            bucket.work = self._sum(bucket.grads, async_op=self._overlap)
            return
        with self._stream.behind_computation():
            self._sum(bucket.grads, async_op=False)
            dist.all_reduce(self._shard(bucket.grads), group=self._instances)

    def _sum(self, grads: torch.Tensor, *, async_op: bool) -> dist.Work | None:
        if self._group is None:
            return None
        if self.shards is not None:
            return reduce_scatter(self._shard(grads), grads, self._group, async_op=async_op)
        work: dist.Work | None = dist.all_reduce(grads, group=self._group, async_op=async_op)
        return work


def build_grad_buffers(
    modules: Iterable[nn.Module],
    config: Config,
    state: ParallelState,
    observer: Observer,
    *,
    is_first_chunk: bool = True,
) -> list[GradBuffer]:
    """Make the buffers of ``modules``, a rank's model chunk, and hook them into autograd.

    One buffer for each parameter dtype, fp8 among them, and for experts apart (they are replicated over other ranks),
    parameters in reverse order of registration: the order in which backward makes their gradients. Buckets are smaller
    than the buffer only in the first chunk of the first stage and with ``overlap_grad_reduce``: ``max(40e6, 1e6 * dp)``
    elements (Megatron-Core ``distributed_data_parallel.py``; elsewhere their reduction would not overlap with the
    pipeline), and not with ``overlap_param_gather_with_optimizer_step`` (Megatron-LM ``training/training.py``).
    """
    optimizer = config.optimizer
    params = [param for module in modules for param in module.parameters() if param.requires_grad]
    kinds: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for param in reversed(params):
        kinds.setdefault((bytes_of(param).dtype, is_expert(param)), []).append(param)
    is_bucketed = optimizer.overlap_grad_reduce and state.is_first_stage and is_first_chunk
    is_bucketed = is_bucketed and not optimizer.overlap_param_gather_with_optimizer_step
    bucket_size = max(40_000_000, 1_000_000 * state.dp_cp.size) if is_bucketed else None
    buffers = [GradBuffer(members, config, state, bucket_size=bucket_size) for members in kinds.values()]
    for buffer in buffers:
        _hook(buffer, observer)
    return buffers


def _is_placeholder(param: nn.Parameter) -> bool:
    """Whether ``param.grad`` holds nothing, since the main gradient has it all (Megatron-Core
    ``distributed_data_parallel.py``).
    """
    added = getattr(param, "grad_added_to_main_grad", False)
    return bool(added) and not getattr(param, "zero_out_wgrad", False)


def _hook(buffer: GradBuffer, observer: Observer) -> None:
    def on_grad(param: torch.Tensor) -> None:
        if param.grad is not None and not _is_placeholder(param):  # type: ignore[arg-type]
            observer.role("gradient", [param.grad])
        buffer.accumulate(param)  # type: ignore[arg-type]

    for param in buffer.params:
        param.register_post_accumulate_grad_hook(on_grad)


def _move(param: nn.Parameter, place: torch.Tensor) -> None:
    place.copy_(bytes_of(param).reshape(-1))
    quantized = quantized_of(param)
    if quantized is None:
        param.data = place.view(param.shape)
    else:
        quantized.data = place.view(param.shape)


def _align(index: int, alignment: int) -> int:
    return -(-index // alignment) * alignment
