"""Layer-level offload of saved activations to the host (Transformer Engine v2, ``pytorch/cpu_offload.py``).

Of L layers the first N send what they saved for backward to pinned memory on a side stream. Layer i's copies on the
device go just before the forward of layer L - N + i, and come back from just before the backward of layer
L - 1 - N + i, so that L - N layers' worth is resident.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from oomscope.config.rules.saved_tensors import SMALLEST_OFFLOADED
from oomscope.model.base.device import SideStream


class _OffloadedStorage:
    """One storage that a layer saved: on the device, on the host, or both."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.device: torch.Tensor | None = flat
        self.host: torch.Tensor | None = None


class _Packed(NamedTuple):
    """A saved tensor as autograd holds it: a storage, and how the tensor lies in it."""

    storage: _OffloadedStorage
    group: _LayerGroup
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _LayerGroup:
    """What one layer saved for one backward."""

    def __init__(self, side: SideStream, parameters: Iterable[nn.Parameter]) -> None:
        self._side = side
        self._kept = {parameter.untyped_storage()._cdata for parameter in parameters}
        self._storages: dict[int, _OffloadedStorage] = {}
        self._event: Any = None

    def hooks(self) -> AbstractContextManager[object]:
        """Take over what is saved inside."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def offload(self) -> None:
        """Begin to copy to the host."""
        pairs = []
        for storage in self._storages.values():
            if storage.device is not None:
                storage.host = self._side.host_like(storage.device)
                pairs.append((storage.host, storage.device))
        self._event = self._side.copy(pairs)

    def release(self) -> None:
        """Free the device's copies, once they have reached the host."""
        self._side.wait(self._event)
        for storage in self._storages.values():
            storage.device = None

    def reload(self) -> None:
        """Begin to copy back to the device. From then on autograd alone holds the storages."""
        pairs = []
        for storage in self._storages.values():
            if storage.device is None and storage.host is not None:
                storage.device = self._side.device_like(storage.host)
                pairs.append((storage.device, storage.host))
            storage.host = None
        self._event = self._side.copy(pairs)
        self._storages = {}

    def arrived(self) -> None:
        """Wait until everything is on the device."""
        if self._storages:
            self.reload()
        self._side.wait(self._event)
        self._event = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        storage = tensor.untyped_storage()
        key = storage._cdata
        covers = storage.nbytes() == tensor.numel() * tensor.element_size()
        if tensor.numel() < SMALLEST_OFFLOADED or key in self._kept or not covers:
            return tensor
        if key not in self._storages:
            self._storages[key] = _OffloadedStorage(tensor.detach().as_strided((tensor.numel(),), (1,), 0))
        return _Packed(self._storages[key], self, tensor.size(), tensor.stride(), int(tensor.storage_offset()))


def _unpack(packed: torch.Tensor | _Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    packed.group.arrived()
    if packed.storage.device is None:
        raise RuntimeError("an offloaded activation was neither on the device nor on the host")
    return packed.storage.device.as_strided(packed.size, packed.stride, packed.offset)


class LayerOffload:
    """Runs the layers of a stage, sending away what the first ``offloaded`` of them save.

    Args:
        layers: the layers, in order.
        offloaded: how many of them (N), less than all.
        device: where they live.
    """

    def __init__(self, layers: nn.ModuleList, offloaded: int, device: torch.device) -> None:
        self._layers = layers
        self._offloaded = offloaded
        self._side = SideStream(device)

    def run(self, hidden: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Return what the layers make of ``hidden``, each given ``others`` too."""
        groups = [_LayerGroup(self._side, layer.parameters()) for layer in self._layers[: self._offloaded]]
        resident = len(self._layers) - self._offloaded
        for index, layer in enumerate(self._layers):
            if index >= resident:
                groups[index - resident].release()
            with groups[index].hooks() if index < self._offloaded else nullcontext():
                hidden = layer(hidden, *others)
            if index < self._offloaded:
                groups[index].offload()
            returning = index - (resident - 1)
            if 0 <= returning < self._offloaded and hidden.requires_grad:
                hidden.register_hook(_before_backward(groups[returning].reload))
        return hidden


def _before_backward(start: Callable[[], None]) -> Callable[[torch.Tensor], None]:
    def hook(_grad: torch.Tensor) -> None:
        start()

    return hook
