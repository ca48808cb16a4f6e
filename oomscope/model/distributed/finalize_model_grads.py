"""What is left to do for the gradients once backward has ended, in the order of Megatron-Core's
``distributed/finalize_model_grads.py``: the mean over replicas, then what sequence parallelism and a tied embedding
have split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.base.observer import Observer
from oomscope.model.distributed.param_and_grad_buffer import is_shared_embedding
from oomscope.model.distributed.parameter_store import ParameterStore
from oomscope.model.parallel.parallel_state import ParallelState


def finalize_grads(stores: Sequence[ParameterStore], state: ParallelState, observer: Observer) -> None:
    """Make every gradient that this rank updates complete."""
    for store in stores:
        store.reduce()
    _sum_over_sequence(stores, state, observer)
    _sum_tied_embedding(stores, state)


def _sum_over_sequence(stores: Sequence[ParameterStore], state: ParallelState, observer: Observer) -> None:
    """Under sequence parallelism each rank's norms and row-linear biases saw only its part of the tokens.

    Their gradients are flattened into one tensor, summed over the TP ranks in one call, and copied back.
    """
    places = _places(stores, lambda param: bool(getattr(param, "sequence_parallel", False)))
    if state.tp_group is None or not places:
        return
    grads = [store.whole_grad(index) for store, index in places]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    observer.role("communication", [flat])
    dist.all_reduce(flat, group=state.tp_group)
    sums = torch.split(flat, [grad.numel() for grad in grads])
    for (store, index), grad, summed in zip(places, grads, sums, strict=True):
        grad.copy_(summed.view(grad.shape))
        store.put_whole_grad(index, grad)


def _sum_tied_embedding(stores: Sequence[ParameterStore], state: ParallelState) -> None:
    """The first stage's copy of a tied embedding saw the tokens, the last stage's the logits."""
    if state.embedding_group is None:
        return
    for store, index in _places(stores, is_shared_embedding):
        dist.all_reduce(store.whole_grad(index), group=state.embedding_group)


def _places(
    stores: Sequence[ParameterStore], concerned: Callable[[nn.Parameter], bool]
) -> list[tuple[ParameterStore, int]]:
    """Return where the gradients of the parameters are that are ``concerned``."""
    return [(store, index) for store in stores for index, param in enumerate(store.params) if concerned(param)]
