"""The base of oomscope's own autograd functions: ``torch.autograd.Function`` with a typed ``apply``."""

from __future__ import annotations

from typing import Any

import torch


class Function(torch.autograd.Function):
    """An operation with a backward of its own, which says exactly what it saves."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run ``forward`` and record the operation."""
        return super().apply(*args)
