"""What is left to do for the gradients once backward has ended, in the order of Megatron-Core's
``distributed/finalize_model_grads.py``: the mean over replicas, then what sequence parallelism and a tied embedding
have split.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.grad_buffer import GradBuffer, is_shared_embedding
from oomscope.model.mesh import ParallelState
from oomscope.model.observer import Observer


def finalize_grads(buffers: Sequence[GradBuffer], state: ParallelState, observer: Observer) -> None:
    """Make every ``main_grad`` that this rank updates complete."""
    for buffer in buffers:
        buffer.reduce()
    params = [param for buffer in buffers for param in buffer.params]
    _sum_over_sequence(params, state, observer)
    _sum_tied_embedding(params, state)


def _sum_over_sequence(params: Sequence[nn.Parameter], state: ParallelState, observer: Observer) -> None:
    """Under sequence parallelism each rank's norms and row-linear biases saw only its part of the tokens.

    Their gradients are flattened into one tensor, summed over the TP ranks in one call, and copied back.
    """
    grads = [_main_grad(param) for param in params if getattr(param, "sequence_parallel", False)]
    if state.tp_group is None or not grads:
        return
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    observer.role("communication", [flat])
    dist.all_reduce(flat, group=state.tp_group)
    for grad, summed in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(summed.view(grad.shape))


def _sum_tied_embedding(params: Sequence[nn.Parameter], state: ParallelState) -> None:
    """The first stage's copy of a tied embedding saw the tokens, the last stage's the logits."""
    if state.embedding_group is None:
        return
    for param in params:
        if is_shared_embedding(param):
            dist.all_reduce(_main_grad(param), group=state.embedding_group)


def _main_grad(param: nn.Parameter) -> torch.Tensor:
    grad: torch.Tensor = param.main_grad  # type: ignore[attr-defined]
    return grad
