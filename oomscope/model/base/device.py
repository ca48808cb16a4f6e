"""What a device does for the model: whether it computes, scratch memory that stays, and copies on a side stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from oomscope import virtual
from oomscope.model.base.observer import Observer


def computes(device: torch.device) -> bool:
    """Whether tensors on ``device`` have values: not on ``meta`` and on a virtual card.

    Where they have none, writing them into memory that is there already may be left out: no memory moves.
    """
    return device.type == "cpu" or (device.type == "cuda" and not virtual.is_loaded())


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


class SideStream:
    """Copies between device and pinned memory that run beside the computation; on the CPU, plain copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
        self._stream: Any = None if self._module is None else self._module.Stream(device=device)
        self._computes = computes(device)

    def copy(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Copy each (target, source) after what the current stream has queued; return an event, None on the CPU."""
        if self._module is None:
            self._copy(pairs)
            return None
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            self._copy(pairs)
        return self._stream.record_event()

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Copy at once, and return ``target``."""
        self._move(target, source, non_blocking=False)
        return target

    def wait(self, event: Any) -> None:
        """Let what the current stream does from now on come after ``event``."""
        if self._module is not None and event is not None:
            self._module.current_stream().wait_event(event)

    def finish(self, event: Any) -> None:
        """Let the host wait for ``event``."""
        if event is not None:
            event.synchronize()

    def pinned(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return host memory, pinned where there is a device to copy from."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self._module is not None)

    def host_like(self, flat: torch.Tensor) -> torch.Tensor:
        """Return host memory for ``flat``."""
        return self.pinned(flat.shape, flat.dtype)

    def device_like(self, host: torch.Tensor) -> torch.Tensor:
        """Return device memory for ``host``, from the current stream's pool: a block cannot change streams."""
        return torch.empty(host.shape, dtype=host.dtype, device=self._device)

    def keep_for_copies(self, tensor: torch.Tensor) -> None:
        """Keep the block of ``tensor`` from being reused before this stream's copies of it are done."""
        if self._stream is not None:
            tensor.record_stream(self._stream)

    def _copy(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for target, source in pairs:
            self._move(target, source, non_blocking=True)

    def _move(self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
        """Copy; where there are no values, only what takes memory on the way, a change of dtype or of layout."""
        is_plain = source.dtype == target.dtype and source.is_contiguous() and target.is_contiguous()
        if self._computes or not is_plain:
            target.copy_(source, non_blocking=non_blocking)
