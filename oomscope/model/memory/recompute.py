"""Activation recomputation: the two kinds of checkpoint that Megatron-Core has (``tensor_parallel/random.py``).

The ordinary checkpoint keeps a region's input and runs the region again in backward. The output-discarding one
also empties the region's *output*, although the next operation has saved it, and fills the same storage again just
before that operation's backward reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from oomscope.model.base.operations import Function, run_backward
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.parallel.tensor_parallel import TensorParallel, all_gather_sequence, flat_shard

Region = Callable[..., torch.Tensor]
"""Tensors in, one tensor out; parameters come by closure."""


class _Checkpoint(Function):
    @staticmethod
    def forward(
        ctx: Any,
        region: Region,
        random: ModelParallelRandom,
        distribute: TensorParallel | None,
        *inputs: torch.Tensor,
    ) -> torch.Tensor:
        ctx.region = region
        ctx.random = random
        ctx.distribute = distribute
        ctx.states = random.states()
        with torch.no_grad():
            out = region(*inputs)
        if distribute is None:
            ctx.save_for_backward(*inputs)
        else:
            ctx.shape = inputs[0].shape
            ctx.save_for_backward(flat_shard(inputs[0], distribute), *inputs[1:])
            inputs[0].untyped_storage().resize_(0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("a checkpoint is not compatible with .grad(): call .backward()")
        saved = list(ctx.saved_tensors)
        if ctx.distribute is not None:
            saved[0] = all_gather_sequence(saved[0], ctx.distribute).view(ctx.shape)
        inputs = [_leaf(x, needed) for x, needed in zip(saved, ctx.needs_input_grad[3:], strict=True)]
        with torch.enable_grad(), ctx.random.replay(ctx.states):
            out = ctx.region(*inputs)
        run_backward([out], [grad])
        return None, None, None, *(x.grad for x in inputs)


def _leaf(x: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return x.detach().requires_grad_(requires_grad)


def checkpoint(
    region: Region, random: ModelParallelRandom, *inputs: torch.Tensor, distribute: TensorParallel | None = None
) -> torch.Tensor:
    """Return ``region(*inputs)``, keeping only ``inputs`` until backward.

    The result is bitwise that of the region itself, dropout included.

    With ``distribute`` it keeps only this rank's part of the first input, which all ranks of the group hold alike, and
    empties its storage, so that no other holder of the tensor keeps it whole.

    Raises:
        RuntimeError: in backward, where ``torch.autograd.grad`` asks for the gradients of some inputs alone.
    """
    return _Checkpoint.apply(region, random, distribute, *inputs)  # type: ignore[no-any-return]


class _Discarding(Function):
    @staticmethod
    def forward(ctx: Any, owner: DiscardedOutput, *inputs: torch.Tensor) -> Any:
        ctx.rerun = owner.rerun
        ctx.save_for_backward(*inputs)
        owner.context = ctx
        with torch.no_grad():
            return owner.rerun.region(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rerun: _Rerun = ctx.rerun
        if not rerun.outputs:
            raise RuntimeError("the output of a region was needed before the gradient that refills it came")
        run_backward(rerun.outputs, grads)
        gradients = [x.grad for x in rerun.inputs]
        # the node that holds these lives on with the output of its microbatch, after its backward; Megatron-Core
        # random.py::CheckpointWithoutOutputFunction.backward drops the same
        rerun.inputs, rerun.outputs = [], []
        return None, *gradients


class _Rerun:
    """A region and, once it has run again, its inputs and the graph to its outputs, but not these."""

    def __init__(self, region: Callable[..., Any]) -> None:
        self.region = region
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[GradientEdge] = []

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the region again, with gradients, and return its outputs."""
        self.inputs = [_leaf(x, x.is_floating_point()) for x in inputs]
        with torch.enable_grad():
            outputs = _as_list(self.region(*self.inputs))
        self.outputs = [get_gradient_edge(out) for out in outputs]
        return outputs


def _as_list(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


class DiscardedOutput:
    """One region without random numbers whose outputs are emptied once they have been used.

    ``run`` it, let the consumer use the outputs, then ``discard`` them. Between forward and backward the region's
    inputs are all that it costs. Upstream splices the new storage into the old tensor; here it is copied, so that
    output and copy coexist for the length of one kernel.

    Args:
        region: one or several tensors in, one tensor or a tuple out, none of them a view.
    """

    def __init__(self, region: Callable[..., Any]) -> None:
        self.rerun = _Rerun(region)
        self.context: Any = None
        self._outputs: list[torch.Tensor] = []

    def run(self, *inputs: torch.Tensor) -> Any:
        """Return what the region makes of ``inputs``."""
        outputs = _Discarding.apply(self, *inputs)
        self._outputs = [out.detach() for out in _as_list(outputs)]
        return outputs

    def discard(self, *, refill_before: torch.Tensor) -> None:
        """Empty the outputs; fill them again when the gradient of ``refill_before``, made after their use, arrives."""
        if not refill_before.requires_grad:
            return  # nothing will come back: without gradients the outputs die by themselves
        context, rerun = self.context, self.rerun
        emptied = [(output, output.untyped_storage().nbytes()) for output in self._outputs]

        def refill(_grad: torch.Tensor) -> None:
            outputs = rerun.run(context.saved_tensors)
            for output, size in emptied:
                output.untyped_storage().resize_(size)
                output.data.copy_(outputs.pop(0).detach())
            emptied.clear()  # the hook lives as long as the graph

        for output, _ in emptied:
            output.untyped_storage().resize_(0)
        refill_before.register_hook(refill)
        self._outputs, self.context = [], None
