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

    def report_roles(self, observer: Observer) -> None:
        """Report the roles of permanent tensors to ``observer``."""
        ...

    def zero(self) -> None:
        """Discard all gradients; called first in a step."""
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

    def wait_until_gathered(self) -> None:
        """Wait until all parameters that this rank can hold are gathered and current."""
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
