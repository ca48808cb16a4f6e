"""Offload of what single modules save for backward (Megatron-Core ``fine_grained_activation_offload.py``).

What is saved while a module runs is one *group*. When the module is done, the group is copied to pinned memory on a
side stream and its tensors are let go; it comes back one group ahead of the backward that reads it. The last group of
each module's name stays, since nothing could hide its return; of the others the first ``fraction`` go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from oomscope.config.schema import OffloadConfig
from oomscope.model.side_stream import SideStream

_LEAST_COVERAGE = 0.5
"""A view of at least this share of its storage takes the whole storage along (upstream's rule)."""

Result = TypeVar("Result")


class ModuleOffload:
    """Runs parts of a model chunk and offloads what those that are named save.

    Args:
        modules: names of the parts to offload; the names are Megatron-Core's ``offload_modules``.
        smallest: elements; a smaller tensor stays.
        fraction: of the groups of a pass, without the last of each name.
        warmup: passes of the first iteration, in which everything goes (upstream counts the groups in it).
        device: where the chunk lives.
    """

    def __init__(
        self, modules: Collection[str], *, smallest: int, fraction: float, warmup: int, device: torch.device
    ) -> None:
        self._modules = frozenset(modules)
        self._smallest = smallest
        self._fraction = fraction
        self._warmup = warmup
        self._to_host = SideStream(device)
        self._to_device = SideStream(device)
        self._pass = _Pass()
        self._layout: list[str] = []
        """The groups of a whole pass, known after the first."""
        self._kept: set[int] = set()

    @classmethod
    def of(cls, offload: OffloadConfig, *, num_microbatches: int, device: torch.device) -> ModuleOffload:
        """Return what ``offload`` asks for; without fine-grained offloading it offloads nothing."""
        modules = offload.offload_modules if offload.fine_grained_activation_offloading else ()
        return cls(
            modules,
            smallest=offload.min_offloaded_tensor_size,
            fraction=offload.activation_offload_fraction,
            warmup=num_microbatches,
            device=device,
        )

    def begin(self, parameters: Collection[nn.Parameter]) -> None:
        """Begin the forward of a microbatch; ``parameters`` are never offloaded."""
        if not self._modules:
            return
        if self._pass.groups:
            self._layout = [group.name for group in self._pass.groups]
        self._warmup -= 1
        resident = set() if self._warmup >= 0 else resident_groups(self._layout, self._fraction)
        self._pass = _Pass(resident)
        if not self._kept:
            self._kept = {parameter.untyped_storage()._cdata for parameter in parameters}

    def run(self, name: str, part: Callable[..., Result], *inputs: torch.Tensor | None, ends: bool = True) -> Result:
        """Return ``part(*inputs)``, and offload what it saved if ``name`` is to be offloaded.

        Args:
            name: of the group.
            part: returns a tensor, or several.
            inputs: its arguments; the gradient of the first one tells that the group's backward is over.
            ends: whether the group ends here; else the next part of the same name goes on with it.
        """
        if name not in self._modules or not torch.is_grad_enabled():
            return part(*inputs)
        group = self._pass.group(name, self)
        if isinstance(inputs[0], torch.Tensor) and inputs[0].requires_grad and not group.is_entered:
            group.is_entered = True
            inputs[0].register_hook(group.left)
        with torch.autograd.graph.saved_tensors_hooks(group.pack, _unpack):
            result = part(*inputs)
        if ends:
            self._pass.open = None
            group.offload()
        return result

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is large enough and no parameter."""
        return tensor.numel() >= self._smallest and tensor.untyped_storage()._cdata not in self._kept

    @property
    def streams(self) -> tuple[SideStream, SideStream]:
        """To the host, and back."""
        return self._to_host, self._to_device


def resident_groups(names: list[str], fraction: float) -> set[int]:
    """Return which groups of a pass, by number, stay on the device.

    Args:
        names: the module of each group, in order.
        fraction: of the others, how many go: the first ones.
    """
    last = {name: number for number, name in enumerate(names)}
    movable = [number for number in range(len(names)) if number not in last.values()]
    return {*last.values(), *movable[math.ceil(len(movable) * fraction) :]}


class _Pass:
    """The groups of one microbatch in one model chunk."""

    def __init__(self, resident: Collection[int] = ()) -> None:
        self.groups: list[_Group] = []
        self.open: _Group | None = None
        self._resident = resident
        self._parcels: WeakValueDictionary[int, _Parcel] = WeakValueDictionary()

    def group(self, name: str, offload: ModuleOffload) -> _Group:
        """Return the group that is open under ``name``, or a new one."""
        if self.open is None or self.open.name != name:
            number = len(self.groups)
            self.open = _Group(name, number, self, offload, stays=number in self._resident)
            self.groups.append(self.open)
        return self.open

    def parcel(self, base: torch.Tensor, group: _Group) -> tuple[_Parcel, bool]:
        """Return the parcel of a storage, which several groups may have saved, and whether it is new."""
        storage = base.untyped_storage()
        known = self._parcels.get(storage._cdata)
        if known is not None and not known.origin.expired():
            return known, False
        parcel = self._parcels[storage._cdata] = _Parcel(base, group)
        return parcel, True

    def reload_before(self, number: int) -> None:
        """Begin to bring back the last group before ``number`` that is away."""
        for group in reversed(self.groups[:number]):
            if group.is_away:
                group.reload()
                return


class _Parcel:
    """One storage, or a view of a small part of one: on the device, on the host, or both."""

    def __init__(self, flat: torch.Tensor, group: _Group) -> None:
        self.device: torch.Tensor | None = flat
        self.host: torch.Tensor | None = None
        self.origin = StorageWeakRef(flat.untyped_storage())
        self.group = group


class _Packed(NamedTuple):
    """A saved tensor as autograd holds it: a parcel, and how the tensor lies in it."""

    parcel: _Parcel
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Group:
    """What one run of a module saved."""

    def __init__(self, name: str, number: int, owner: _Pass, offload: ModuleOffload, *, stays: bool) -> None:
        self.name = name
        self.is_entered = False
        self.is_away = False
        self._number = number
        self._owner = owner
        self._offload = offload
        self._stays = stays
        self._parcels: list[_Parcel] = []
        self._sent: object = None
        self._returned: object = None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        """Take over a tensor that is to be saved."""
        if self._stays or not self._offload.takes(tensor):
            return tensor
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        if tensor.numel() >= _LEAST_COVERAGE * elements:
            base = tensor.detach().as_strided((elements,), (1,), 0)
            form = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
            parcel, is_new = self._owner.parcel(base, self)
        else:
            base = tensor.detach().contiguous().flatten()
            form = (tensor.size(), _contiguous_strides(tensor.size()), 0)
            parcel, is_new = _Parcel(base, self), True
        if is_new:
            self._parcels.append(parcel)
        return _Packed(parcel, *form)

    def offload(self) -> None:
        """Begin to copy everything to the host, and let go of it."""
        stream = self._offload.streams[0]
        pairs = []
        for parcel in self._parcels:
            if parcel.device is not None:
                parcel.host = stream.host_like(parcel.device)
                pairs.append((parcel.host, parcel.device))
        self._sent = stream.copy(pairs)
        for _, source in pairs:
            stream.keep_for_copies(source)
        for parcel in self._parcels:
            parcel.device = None
        self.is_away = bool(self._parcels)

    def reload(self) -> None:
        """Begin to bring everything back."""
        stream = self._offload.streams[1]
        stream.wait(self._sent)
        pairs = []
        for parcel in self._parcels:
            if parcel.host is not None:
                parcel.device = stream.device_like(parcel.host)
                pairs.append((parcel.device, parcel.host))
                parcel.host = None
        self._returned = stream.copy(pairs)
        self._parcels = []  # from now on autograd alone holds them
        self.is_away = False

    def arrived(self) -> None:
        """Wait until everything is back."""
        if self.is_away:
            self.reload()
        self._offload.streams[1].wait(self._returned)
        self._returned = None

    def left(self, _grad: torch.Tensor) -> None:
        """The group's backward is over: the group before it is the next to be read."""
        self._owner.reload_before(self._number)


def _unpack(packed: torch.Tensor | _Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    packed.parcel.group.arrived()
    if packed.parcel.device is None:
        raise RuntimeError("an offloaded activation was neither on the device nor on the host")
    return packed.parcel.device.as_strided(packed.size, packed.stride, packed.offset)


def _contiguous_strides(size: torch.Size) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


KEEP_ALL = ModuleOffload((), smallest=0, fraction=0.0, warmup=0, device=torch.device("cpu"))
"""Offloads nothing."""
