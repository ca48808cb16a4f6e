"""What an optimizer and the last reductions of a step ask of the place where a rank keeps parameters and gradients.

Three places answer: contiguous buffers (``param_and_grad_buffer.py``), parameters that torch's FSDP2 has cut up
(``torch_fsdp2.py``), and the buckets of Megatron-FSDP (``megatron_fsdp.py``).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from oomscope.model.base.observer import Observer


class ParameterStore(Protocol):
    """Parameters of one kind with their gradients, and the part of each that this rank updates."""

    params: tuple[nn.Parameter, ...]
    is_last_microbatch: bool
    """Set by the schedule: gradients that arrive now complete the step."""

    def tell(self, observer: Observer) -> None:
        """Tell the roles of the tensors that are kept for good."""
        ...

    def zero(self) -> None:
        """Forget all gradients; the first thing of a step."""
        ...

    def reduce(self) -> None:
        """Make the gradients of what this rank updates the mean over its replicas."""
        ...

    def gather(self, *, overlap: bool = False) -> None:
        """Fetch what other ranks have updated; with ``overlap``, :meth:`await_gather` ends it."""
        ...

    def await_gather(self) -> None:
        """Wait for what is being gathered."""
        ...

    def make_whole(self) -> None:
        """Let all parameters be whole and up to date, as far as any one rank can hold them, for who reads them."""
        ...

    def value(self, index: int) -> torch.Tensor:
        """Return the elements of parameter ``index`` that this rank updates, none or all of them included."""
        ...

    def master(self, index: int) -> torch.Tensor | None:
        """Return the fp32 weights of :meth:`value` where the store keeps them itself, else None."""
        ...

    def take_grad(self, index: int) -> torch.Tensor:
        """Return the gradient of :meth:`value`; a store without buffers of its own forgets it."""
        ...

    def whole_grad(self, index: int) -> torch.Tensor:
        """Return the gradient of all of parameter ``index``, for a sum over ranks that hold it too."""
        ...

    def put_whole_grad(self, index: int, grad: torch.Tensor) -> None:
        """Take back what :meth:`whole_grad` returned, after it was changed in place."""
        ...
