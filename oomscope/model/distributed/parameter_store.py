"""What an optimizer and the last reductions of a step ask of the place where a rank keeps parameters and gradients.

Three places answer: contiguous buffers (``param_and_grad_buffer.py``), parameters that torch's FSDP2 has cut up
(``torch_fsdp2.py``), and the buckets of Megatron-FSDP (``megatron_fsdp.py``). The last reductions are those of
Megatron-Core's ``distributed/finalize_model_grads.py``: the mean over replicas, then what sequence parallelism and a
tied embedding have split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.base.observer import Observer
from oomscope.model.parallel.parallel_state import ParallelState


class ParameterStore:
    """Parameters of one kind with their gradients, and the part of each that this rank updates."""

    params: tuple[nn.Parameter, ...]
    is_last_microbatch = False
    """Whether gradients that arrive now complete the step; set by the schedule."""

    def report_roles(self, observer: Observer) -> None:
        """Report the roles of permanent tensors to ``observer``."""
        raise NotImplementedError

    def zero(self) -> None:
        """Discard all gradients; called first in a step."""
        raise NotImplementedError

    def reduce(self) -> None:
        """Make the gradients of what this rank updates the mean over its replicas, if that is still to be done."""

    def gather(self, *, overlap: bool = False) -> None:
        """Fetch what other ranks have updated; with ``overlap``, :meth:`await_gather` ends it."""

    def await_gather(self) -> None:
        """Wait for what is being gathered."""

    def value(self, index: int) -> torch.Tensor:
        """Return the elements of parameter ``index`` that this rank updates, none or all of them included."""
        raise NotImplementedError

    def master(self, index: int) -> torch.Tensor | None:
        """Return the fp32 weights of :meth:`value` where the store keeps them itself, else None."""
        return None

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the gradient of :meth:`value`; a store without buffers of its own forgets it."""
        raise NotImplementedError

    def whole_grad(self, index: int) -> torch.Tensor:
        """Return the gradient of all of parameter ``index``, for a sum over ranks that hold it too."""
        return self.take_grad(index)

    def put_whole_grad(self, index: int, grad: torch.Tensor) -> None:
        """Take back what :meth:`whole_grad` returned, after it was changed in place; a buffer has it already."""


def is_expert(param: nn.Parameter) -> bool:
    """Whether ``param`` belongs to a routed expert (Megatron-Core marks those with ``allreduce = False``)."""
    return not getattr(param, "allreduce", True)


def is_shared_embedding(param: nn.Parameter) -> bool:
    """Whether ``param`` is a tied word embedding."""
    return bool(getattr(param, "shared_embedding", False))


def finalize_grads(stores: Sequence[ParameterStore], state: ParallelState, observer: Observer) -> None:
    """Make every gradient that this rank updates complete."""
    for store in stores:
        store.reduce()
    _sum_over_sequence(stores, state, observer)
    if state.embedding.group is not None:  # the first stage's copy saw the tokens, the last stage's the logits
        for store, index in _places(stores, is_shared_embedding):
            dist.all_reduce(store.whole_grad(index), group=state.embedding.group)


def _sum_over_sequence(stores: Sequence[ParameterStore], state: ParallelState, observer: Observer) -> None:
    """Under sequence parallelism each rank's norms and row-linear biases saw only its part of the tokens.

    Their gradients are flattened into one tensor, summed over the TP ranks in one call, and copied back.
    """
    places = _places(stores, lambda param: bool(getattr(param, "sequence_parallel", False)))
    if state.tp.group is None or not places:
        return
    grads = [store.whole_grad(index) for store, index in places]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    observer.role("communication", [flat])
    dist.all_reduce(flat, group=state.tp.group)
    sums = torch.split(flat, [grad.numel() for grad in grads])
    for (store, index), grad, summed in zip(places, grads, sums, strict=True):
        grad.copy_(summed.view(grad.shape))
        store.put_whole_grad(index, grad)


def _places(
    stores: Sequence[ParameterStore], concerned: Callable[[nn.Parameter], bool]
) -> list[tuple[ParameterStore, int]]:
    """Return where the gradients of the parameters are that are ``concerned``."""
    return [(store, index) for store in stores for index, param in enumerate(store.params) if concerned(param)]
