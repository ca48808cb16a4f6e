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
from oomscope.model.base.observer import Observer
from oomscope.model.base.operations import all_gather
from oomscope.model.distributed.grad_reduction import GradReduction
from oomscope.model.fp8.weight import bytes_of, quantized_of
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
    """Place parameters of ``numels`` elements one after the other and cut the buffer into buckets.

    Args:
        numels: elements of each parameter, in the order of the buffer.
        shards: ranks that share the optimizer's states, None without the distributed optimizer: only shards need
            aligned boundaries, so that nothing is padded without them.
        bucket_size: elements after which a bucket is closed; None for a single bucket.
        own_bucket: parameters that share a bucket with no other.

    The rules are Megatron-Core's (``param_and_grad_buffer.py``).
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


class GradBuffer:
    """The main gradients of the parameters of one dtype (and, under the distributed optimizer, the parameters)."""

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        *,
        grad_dtype: torch.dtype,
        group: dist.ProcessGroup | None,
        shards: int | None,
        rank: int,
        scale: float,
        bucket_size: int | None = None,
        own_bucket: Sequence[bool] | None = None,
        overlap: bool = False,
        instances: dist.ProcessGroup | None = None,
    ) -> None:
        """Make the buffer and point each parameter's ``main_grad`` into it.

        Args:
            params: parameters of one dtype and device, in the order of the buffer.
            grad_dtype: dtype of the main gradients.
            group: ranks with the same parameters, of one optimizer instance; None where this rank has them alone.
            shards: ranks that share the optimizer's states, None without the distributed optimizer.
            rank: this rank's place in ``group``.
            scale: factor on the sum over all replicas (one over the data-parallel size gives the mean).
            bucket_size: elements of a bucket, None for one bucket.
            own_bucket: parameters that share a bucket with no other.
            overlap: start a bucket's reduction as soon as its last gradient has arrived.
            instances: ranks with the same shard in every optimizer instance; None for one instance.
        """
        self.params = tuple(params)
        self.layout = lay_out(
            [param.numel() for param in params], shards=shards, bucket_size=bucket_size, own_bucket=own_bucket
        )
        self.shards = shards
        self.is_last_microbatch = False
        """Set by the schedule: gradients that arrive now complete the step."""
        self._group = group
        self._rank = rank
        self._reduction = GradReduction(
            group=group,
            instances=instances,
            shards=shards,
            rank=rank,
            overlap=overlap,
            device=params[0].device,
        )
        self._scale = scale
        self._overlap = overlap
        device = params[0].device
        self.values = (
            torch.zeros(self.layout.numel, dtype=bytes_of(params[0]).dtype, device=device)
            if shards is not None
            else None
        )
        self.grads = torch.zeros(self.layout.numel, dtype=grad_dtype, device=device)
        for param, span in zip(self.params, self.layout.params, strict=True):
            if self.values is not None:
                _move(param, self.values[span.start : span.end])
            param.main_grad = self.grads[span.start : span.end].view(param.shape)  # type: ignore[attr-defined]
            param.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        self.buckets = [self._bucket(span) for span in self.layout.buckets]
        self._bucket_of = {
            param: bucket
            for param, span in zip(self.params, self.layout.params, strict=True)
            for bucket in self.buckets
            if bucket.span.start <= span.start < bucket.span.end
        }

    def zero(self) -> None:
        """Discard all gradients; called first in a step."""
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
            if not is_placeholder(param):
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
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
        self._reduction.join()

    def gather(self, *, overlap: bool = False) -> None:
        """Fetch the other ranks' shards of the updated parameters, in place (distributed optimizer).

        With ``overlap`` this only begins; :meth:`await_gather` ends it. In place too, so that it costs no byte.
        """
        if self._group is None or self.shards is None:
            return
        for bucket in reversed(self.buckets):
            if bucket.values is not None:
                shard = self._reduction.shard(bucket.values)
                bucket.work = all_gather(bucket.values, shard, self._group, async_op=overlap)

    def await_gather(self) -> None:
        """Wait until all parameters are whole."""
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None

    def wait_until_gathered(self) -> None:
        """Wait for what is being gathered: that is all of them."""
        self.await_gather()

    def report_roles(self, observer: Observer) -> None:
        """Report main gradients to ``observer``."""
        observer.role("main_gradient", [self.grads])

    def value(self, index: int) -> torch.Tensor:
        """Return the elements of parameter ``index`` that this rank updates."""
        return self._part(bytes_of(self.params[index]), index)

    def master(self, index: int) -> None:
        """Return None: masters are the optimizer's."""

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the main gradient of :meth:`value`, which stays where it is."""
        return self._part(self.whole_grad(index), index)

    def whole_grad(self, index: int) -> torch.Tensor:
        """Return the main gradient of parameter ``index``."""
        grad: torch.Tensor = self.params[index].main_grad  # type: ignore[attr-defined]
        return grad

    def put_whole_grad(self, index: int, grad: torch.Tensor) -> None:
        """Do nothing: ``grad`` is the main gradient."""

    def _part(self, whole: torch.Tensor, index: int) -> torch.Tensor:
        if self.shards is None:
            return whole
        owned = self.owned(index)
        return whole.view(-1)[owned.start : owned.end]

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

    def _bucket(self, span: Span) -> Bucket:
        values = self.values[span.start : span.end] if self.values is not None else None
        return Bucket(span=span, grads=self.grads[span.start : span.end], values=values)

    def _launch(self, bucket: Bucket) -> None:
        bucket.launched = True
        if self._scale != 1:
            bucket.grads.mul_(self._scale)
        bucket.work = self._reduction.launch(bucket.grads)


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
    overlap = optimizer.overlap_grad_reduce
    is_bucketed = (
        overlap and state.is_first_stage and is_first_chunk and not optimizer.overlap_param_gather_with_optimizer_step
    )
    bucket_size = max(40_000_000, 1_000_000 * state.dp_cp_size) if is_bucketed else None
    buffers = []
    for (_, expert), members in kinds.items():
        replicas = state.intra_expert_dp_size if expert else state.intra_dp_cp_size
        sharded = optimizer.use_distributed_optimizer
        buffers.append(
            GradBuffer(
                members,
                grad_dtype=torch.float32 if config.precision.grad_reduce_in_fp32 else members[0].dtype,
                group=state.intra_expert_dp_group if expert else state.intra_dp_cp_group,
                shards=replicas if sharded else None,
                rank=state.intra_expert_dp_rank if expert else state.intra_dp_cp_rank,
                scale=1 / state.dp_cp_size,
                bucket_size=bucket_size,
                own_bucket=[sharded and state.pp_size > 1 and is_shared_embedding(param) for param in members],
                overlap=overlap,
                instances=state.inter_dist_opt_group,
            )
        )
    for buffer in buffers:
        _hook(buffer, observer)
    return buffers


def is_expert(param: nn.Parameter) -> bool:
    """Whether ``param`` belongs to a routed expert (Megatron-Core marks those with ``allreduce = False``)."""
    return not getattr(param, "allreduce", True)


def is_placeholder(param: nn.Parameter) -> bool:
    """Whether ``param.grad`` holds nothing, since the main gradient has it all (Megatron-Core
    ``distributed_data_parallel.py``).
    """
    added = getattr(param, "grad_added_to_main_grad", False)
    return bool(added) and not getattr(param, "zero_out_wgrad", False)


def is_shared_embedding(param: nn.Parameter) -> bool:
    """Whether ``param`` is a tied word embedding."""
    return bool(getattr(param, "shared_embedding", False))


def _hook(buffer: GradBuffer, observer: Observer) -> None:
    def on_grad(param: torch.Tensor) -> None:
        if param.grad is not None and not is_placeholder(param):  # type: ignore[arg-type]
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
