"""Scratch memory that is made once, kept for the whole run, and as large as its largest user
(Megatron-Core ``utils.py::GlobalMemoryBuffer``, name "mpu"). Megatron's local layers use it, and experts that gather
all tokens; Transformer Engine's layers allocate afresh.
"""

from __future__ import annotations

import torch

from oomscope.model.base.observer import Observer


class MemoryBuffer:
    """The scratch memory of one rank; what a user wrote is gone when the next one comes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._flat: torch.Tensor | None = None

    def take(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return ``shape`` of the memory, with whatever it holds."""
        numel = torch.Size(shape).numel()
        if self._flat is None or self._flat.numel() < numel:
            self._flat = torch.empty(numel, dtype=dtype, device=device)
            self._observer.role("workspace", [self._flat])
        return self._flat[:numel].view(shape)
