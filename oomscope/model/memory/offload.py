"""Offload of what is saved for backward, to pinned memory on a side stream: of whole layers, or of single modules.

**Layers** (Transformer Engine v2, ``pytorch/cpu_offload.py``). Of L layers the first N are sent away. Layer i's copies
on the device go just before the forward of layer L - N + i, and come back from just before the backward of layer
L - 1 - N + i, so that L - N layers' worth is resident.

**Modules** (Megatron-Core ``fine_grained_activation_offload.py``). What is saved while a module runs is one *group*,
which is copied and freed when the module is done, unless it stays resident. The end of each group's backward brings
back the last that is still away, of the same pass or else of the next. What is saved twice goes and comes back twice.
One manager serves all model chunks and microbatches of a rank: it sends everything away in its first iteration; from
the second on it leaves on the device what would come back at once, and the share that is not to be offloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.device import SideStream
from oomscope.model.parallel.schedules import PassOrder, pass_order

SMALLEST_OFFLOADED = 256 * 1024
"""Elements that a tensor must have for layer offloading to take it (Transformer Engine ``pytorch/cpu_offload.py``)."""

Result = TypeVar("Result")
Saved = tuple[str, int]
"""The module's name, and the bytes of what one run of it saved in tensors that are large enough to be offloaded."""


class _Storage:
    """One saved tensor, or the storage that it is most of: on the device, on the host, or both."""

    def __init__(self, flat: torch.Tensor) -> None:
        self.place = flat.device
        self.device: torch.Tensor | None = flat
        self.host: torch.Tensor | None = None


class _Packed(NamedTuple):
    """A saved tensor as autograd holds it: a storage, and how the tensor lies in it."""

    storage: _Storage
    group: _SavedTensors
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _SavedTensors:
    """What one region saved for one backward; subclasses choose which tensors are taken."""

    def __init__(self, streams: tuple[SideStream, SideStream]) -> None:
        self._to_host, self._to_device = streams
        self.storages: list[_Storage] = []
        self.is_away = False
        self._sent: Any = None
        self._returned: Any = None

    def hooks(self) -> AbstractContextManager[object]:
        """Take over what is saved inside."""
        return torch.autograd.graph.saved_tensors_hooks(self.pack, _unpack)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        """Take over a tensor that is to be saved, or return it as it is."""
        raise NotImplementedError

    def send(self) -> None:
        """Begin to copy everything to the host."""
        pairs = []
        for storage in self.storages:
            if storage.device is not None:
                storage.host = self._to_host.pinned(storage.device.shape, storage.device.dtype)
                pairs.append((storage.host, storage.device))
        self._sent = self._to_host.copy(pairs)

    def release(self, *, at_once: bool = False) -> None:
        """Free the device's copies once they have reached the host; ``at_once`` the allocator waits, not the device."""
        if not at_once:
            self._to_host.wait(self._sent)
        for storage in self.storages:
            if at_once and storage.device is not None:
                self._to_host.keep_for_copies(storage.device)
            storage.device = None
        self.is_away = bool(self.storages)

    def fetch(self) -> None:
        """Begin to bring everything back, if it is away; from then on autograd alone holds it."""
        if not self.is_away:
            return
        self._to_device.wait(self._sent)
        pairs = []
        for storage in self.storages:
            if storage.host is not None:  # memory of the current stream's pool: a block cannot change streams
                storage.device = torch.empty(storage.host.shape, dtype=storage.host.dtype, device=storage.place)
                pairs.append((storage.device, storage.host))
                storage.host = None
        self._returned = self._to_device.copy(pairs)
        self.storages, self.is_away = [], False

    def arrived(self) -> None:
        """Wait until everything is on the device."""
        self.fetch()
        self._to_device.wait(self._returned)
        self._returned = None


def _unpack(packed: torch.Tensor | _Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    packed.group.arrived()
    if packed.storage.device is None:
        raise RuntimeError("an offloaded activation was neither on the device nor on the host")
    return packed.storage.device.as_strided(packed.size, packed.stride, packed.offset)


# Layers ----------------------------------------------------------------------------------------------------------


class _SavedByLayer(_SavedTensors):
    """What one layer saved: large tensors that fill their storages, each of these once, but no parameters."""

    def __init__(self, side: SideStream, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__((side, side))
        self._parameters = {parameter.untyped_storage()._cdata for parameter in parameters}
        self._known: dict[int, _Storage] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        """Take over ``tensor``, if it is to go."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        covers = storage.nbytes() == tensor.numel() * tensor.element_size()
        if tensor.numel() < SMALLEST_OFFLOADED or key in self._parameters or not covers:
            return tensor
        if key not in self._known:
            self._known[key] = _Storage(tensor.detach().as_strided((tensor.numel(),), (1,), 0))
            self.storages.append(self._known[key])
        return _Packed(self._known[key], self, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def fetch(self) -> None:
        """Begin to bring everything back."""
        self._known = {}
        super().fetch()


class LayerOffload:
    """Runs the layers of a stage, sending away what the first ``offloaded`` of them save."""

    def __init__(self, layers: nn.ModuleList, offloaded: int, device: torch.device) -> None:
        self._layers = layers
        self._offloaded = offloaded
        self._side = SideStream(device)

    def run(self, hidden: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Return what the layers make of ``hidden``, each given ``others`` too."""
        groups = [_SavedByLayer(self._side, layer.parameters()) for layer in self._layers[: self._offloaded]]
        resident = len(self._layers) - self._offloaded
        for index, layer in enumerate(self._layers):
            if index >= resident:
                groups[index - resident].release()
            with groups[index].hooks() if index < self._offloaded else nullcontext():
                hidden = layer(hidden, *others)
            if index < self._offloaded:
                groups[index].send()
            returning = index - (resident - 1)
            if 0 <= returning < self._offloaded and hidden.requires_grad:
                hidden.register_hook(lambda _grad, group=groups[returning]: group.fetch())
        return hidden


# Modules ---------------------------------------------------------------------------------------------------------


def resident_groups(passes: Sequence[Sequence[Saved]], order: PassOrder, fraction: float) -> list[set[int]]:
    """Return for each pass, in the order of forwards, the numbers of its groups that stay.

    Three kinds do: of each module's name the last group of the first pass to be differentiated that has any, as many
    names at most as one pass has; of the groups with bytes that are then left in a pass the last
    ``int(n * (1 - fraction))``; and the last group of each name in a pass that is differentiated next when it has run,
    as on the last stage.
    """
    resident: list[set[int]] = [set() for _ in passes]
    for forward, group in _first_needed(passes, order):
        resident[forward].add(group)
    for groups, staying in zip(passes, resident, strict=True):
        movable = [number for number, (_, nbytes) in enumerate(groups) if nbytes and number not in staying]
        staying.update(movable[len(movable) - int(len(movable) * (1 - fraction)) :])
    for forward in range(len(passes)):
        resident[forward] |= _read_next(forward, passes, order)
    return resident


def _first_needed(passes: Sequence[Sequence[Saved]], order: PassOrder) -> list[tuple[int, int]]:
    """Return pass and number of the last group of each name in the earliest backward that has any of that name."""
    last: dict[str, tuple[int, int]] = {}
    for forward in reversed(order.backward):
        last.update({name: (forward, number) for number, (name, _) in enumerate(passes[forward])})
    most = max((len({name for name, _ in groups}) for groups in passes), default=0)
    return list(last.values())[:most]


def _read_next(forward: int, passes: Sequence[Sequence[Saved]], order: PassOrder) -> set[int]:
    """Return the last group of each name that no pass differentiated between this one's forward and backward has."""
    before: set[str] = set()
    for waiting in order.backward[order.differentiated_before(forward) :]:
        if waiting == forward:
            break
        before |= {name for name, _ in passes[waiting]}
    last = {name: number for number, (name, _) in enumerate(passes[forward])}
    return {number for name, number in last.items() if name not in before}


_LEAST_COVERAGE = 0.5
"""A view of at least this share of its storage takes the whole storage along (upstream's rule)."""


@dataclass
class _Pass:
    """The groups of one microbatch in one model chunk."""

    number: int
    """Number of this forward pass within the iteration."""
    resident: Collection[int]
    groups: list[_Group] = field(default_factory=list)
    gone: list[_Group] = field(default_factory=list)
    """Groups that were offloaded and are not yet due to come back, in order."""
    open: _Group | None = None


class ModuleOffload:
    """Runs parts of a rank's model chunks and offloads what those in ``offload_modules`` save."""

    def __init__(self, config: Config, *, pp_rank: int, device: torch.device) -> None:
        offload = config.offload
        self._modules = frozenset(offload.offload_modules if offload.fine_grained_activation_offloading else ())
        self._smallest = offload.min_offloaded_tensor_size
        self._fraction = offload.activation_offload_fraction
        self._order = pass_order(config, pp_rank)
        self._streams = SideStream(device), SideStream(device)
        self.passes: list[_Pass] = []
        """Passes of the iteration that have begun."""
        self._resident: list[set[int]] | None = None
        """Groups of each pass that stay; None in the first iteration, in which all go."""
        self._parameters: set[int] = set()

    def begin(self, parameters: Collection[nn.Parameter]) -> None:
        """Begin the forward of a microbatch through a chunk, whose ``parameters`` are never offloaded."""
        if not self._modules:
            return
        if len(self.passes) == len(self._order.chunks):
            if self._resident is None:
                saved = [[(group.name, group.nbytes) for group in one.groups] for one in self.passes]
                self._resident = resident_groups(saved, self._order, self._fraction)
            self.passes = []
        if self._resident is None:
            self._parameters |= {parameter.untyped_storage()._cdata for parameter in parameters}
        number = len(self.passes)
        self.passes.append(_Pass(number, () if self._resident is None else self._resident[number]))

    def run(self, name: str, part: Callable[..., Result], *inputs: torch.Tensor | None, ends: bool = True) -> Result:
        """Return ``part(*inputs)``, and offload what it saved if ``name`` is to be offloaded.

        The gradient of the first input ends the backward of the group, to which the next part of the same name belongs
        too unless it ``ends`` here.
        """
        if name not in self._modules or not torch.is_grad_enabled():
            return part(*inputs)
        owner = self.passes[-1]
        if owner.open is None or owner.open.name != name:
            stays = len(owner.groups) in owner.resident
            owner.open = _Group(name, self._streams, self._smallest, self._parameters, stays=stays)
            owner.groups.append(owner.open)
        group = owner.open
        if isinstance(inputs[0], torch.Tensor) and inputs[0].requires_grad and not group.is_entered:
            group.is_entered = True
            passes = self.passes
            inputs[0].register_hook(lambda _grad: self._reload_one(owner, passes))
        with group.hooks():
            result = part(*inputs)
        if ends:
            owner.open = None
            if not group.stays:
                group.send()
                group.release(at_once=True)
                owner.gone.append(group)
        return result

    def _reload_one(self, owner: _Pass, passes: Sequence[_Pass]) -> None:
        """Give the last group that is gone its turn to come back, or that of the next pass where none is."""
        order, gone = self._order.backward, owner.gone
        if not gone:
            # the pass with groups that is differentiated next, if it has run
            following = order[order.index(owner.number) + 1 :]
            has_groups = (later for later in following if later >= len(passes) or passes[later].groups)
            later = next(has_groups, len(passes))
            gone = passes[later].gone if later < len(passes) else gone
        if gone:
            gone.pop().fetch()


class _Group(_SavedTensors):
    """What one run of a module saved."""

    def __init__(
        self,
        name: str,
        streams: tuple[SideStream, SideStream],
        smallest: int,
        parameters: Collection[int],
        *,
        stays: bool,
    ) -> None:
        super().__init__(streams)
        self.name = name
        self.stays = stays
        self.nbytes = 0
        """Bytes saved in large tensors, those that another group has saved too included."""
        self.is_entered = False
        self._smallest = smallest
        self._parameters = parameters

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        """Take over ``tensor``, if it is large enough and no parameter; a large view takes its storage along."""
        storage = tensor.untyped_storage()
        if self.stays or tensor.numel() < self._smallest or storage._cdata in self._parameters:
            return tensor
        self.nbytes += tensor.nbytes
        elements = storage.nbytes() // tensor.element_size()
        if tensor.numel() >= _LEAST_COVERAGE * elements:
            base = tensor.detach().as_strided((elements,), (1,), 0)
            stride, offset = tensor.stride(), int(tensor.storage_offset())
        else:
            contiguous = tensor.detach().contiguous()
            base, stride, offset = contiguous.flatten(), contiguous.stride(), 0
        self.storages.append(_Storage(base))
        return _Packed(self.storages[-1], self, tensor.size(), stride, offset)
