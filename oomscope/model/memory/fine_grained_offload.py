"""Offload of what single modules save for backward (Megatron-Core ``fine_grained_activation_offload.py``).

What is saved while a module runs is one *group*. When the module is done, the group is copied to pinned memory on a
side stream and its tensors are freed, unless it stays resident. The end of each group's backward brings back the last
that is still away, of the same pass or else of the next: as many are back early as stayed. What is saved twice goes
twice and comes back twice, as attention's probabilities do (``bulk_offload_group``).

One manager serves all model chunks and microbatches of a rank. It sends everything away in its first iteration; from
the second on it leaves on the device what would come back at once, and then the share that is not to be offloaded
(``post_warmup_callback``, ``should_bulk_offload``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.device import SideStream
from oomscope.model.parallel.schedules import PassOrder, pass_order


class SavedGroup(NamedTuple):
    """What one run of a module saved."""

    name: str
    """Of the module."""
    nbytes: int
    """In tensors that are large enough to be offloaded."""


def resident_groups(passes: Sequence[Sequence[SavedGroup]], order: PassOrder, fraction: float) -> list[set[int]]:
    """Return of each pass, in the order of forwards, which of its groups stay, by number.

    Three kinds do: of each module's name the last group of the first pass to be differentiated that has any, as many
    names at most as one pass has; of the groups with bytes that are then left in a pass the last
    ``int(n * (1 - fraction))``; and the last group of each name in a pass that is differentiated next when it has run,
    as on the last stage.

    Args:
        passes: the groups of each.
        order: when they are differentiated.
        fraction: of the groups that may go, how many do.
    """
    resident: list[set[int]] = [set() for _ in passes]
    for forward, group in _first_needed(passes, order):
        resident[forward].add(group)
    for groups, staying in zip(passes, resident, strict=True):
        movable = [number for number, group in enumerate(groups) if group.nbytes and number not in staying]
        staying.update(movable[len(movable) - int(len(movable) * (1 - fraction)) :])
    for forward in range(len(passes)):
        resident[forward] |= _read_next(forward, passes, order)
    return resident


def _first_needed(passes: Sequence[Sequence[SavedGroup]], order: PassOrder) -> list[tuple[int, int]]:
    """Return pass and number of the last group of each name in the earliest backward that has any of that name."""
    last: dict[str, tuple[int, int]] = {}
    for forward in reversed(order.backward):
        last.update({group.name: (forward, number) for number, group in enumerate(passes[forward])})
    most = max((len({group.name for group in groups}) for groups in passes), default=0)
    return list(last.values())[:most]


def _read_next(forward: int, passes: Sequence[Sequence[SavedGroup]], order: PassOrder) -> set[int]:
    """Return the last groups of those names of which no pass is differentiated before this one, once it has run."""
    before: set[str] = set()
    for waiting in order.backward[order.differentiated_before(forward) :]:
        if waiting == forward:
            break
        before |= {group.name for group in passes[waiting]}
    last = {group.name: number for number, group in enumerate(passes[forward])}
    return {number for name, number in last.items() if name not in before}


_LEAST_COVERAGE = 0.5
"""A view of at least this share of its storage takes the whole storage along (upstream's rule)."""

Result = TypeVar("Result")


class ModuleOffload:
    """Runs parts of a rank's model chunks and offloads what those that are named save.

    Args:
        modules: names of the parts to offload; the names are Megatron-Core's ``offload_modules``.
        smallest: elements; a smaller tensor stays.
        fraction: of the groups of a pass that may go.
        order: the passes of an iteration through the chunks.
        device: where the chunks live.
    """

    def __init__(
        self, modules: Collection[str], *, smallest: int, fraction: float, order: PassOrder, device: torch.device
    ) -> None:
        self._modules = frozenset(modules)
        self._smallest = smallest
        self._fraction = fraction
        self._order = order
        self._to_host = SideStream(device)
        self._to_device = SideStream(device)
        self._pass = _Pass()
        self._passes: list[_Pass] = []
        """Those of the iteration that have begun."""
        self._resident: list[set[int]] | None = None
        """Which groups of each pass stay; not known in the first iteration, in which all go."""
        self._kept: set[int] = set()

    @classmethod
    def of(cls, config: Config, *, pp_rank: int, device: torch.device) -> ModuleOffload:
        """Return what ``config`` asks for; without fine-grained offloading it offloads nothing."""
        offload = config.offload
        modules = offload.offload_modules if offload.fine_grained_activation_offloading else ()
        return cls(
            modules,
            smallest=offload.min_offloaded_tensor_size,
            fraction=offload.activation_offload_fraction,
            order=pass_order(config, pp_rank),
            device=device,
        )

    def begin(self, parameters: Collection[nn.Parameter]) -> None:
        """Begin the forward of a microbatch through a chunk, whose ``parameters`` are never offloaded."""
        if not self._modules:
            return
        if len(self._passes) == len(self._order.chunks):
            self._end_iteration()
        if self._resident is None:
            self._kept |= {parameter.untyped_storage()._cdata for parameter in parameters}
        resident = set() if self._resident is None else self._resident[len(self._passes)]
        self._pass = _Pass(resident, partial(self._following, len(self._passes)))
        self._passes.append(self._pass)

    def _end_iteration(self) -> None:
        if self._resident is None:
            saved = [[SavedGroup(group.name, group.nbytes) for group in one.groups] for one in self._passes]
            self._resident = resident_groups(saved, self._order, self._fraction)
        self._passes = []

    def _following(self, forward: int) -> _Pass | None:
        """Return the pass with groups that is differentiated after ``forward``; None where it has not run yet."""
        order = self._order.backward
        for later in order[order.index(forward) + 1 :]:
            if later >= len(self._passes):
                return None
            if self._passes[later].groups:
                return self._passes[later]
        return None

    def run(self, name: str, part: Callable[..., Result], *inputs: torch.Tensor | None, ends: bool = True) -> Result:
        """Return ``part(*inputs)``, and offload what it saved if ``name`` is to be offloaded.

        Args:
            name: of the group.
            part: returns a tensor, or several.
            inputs: its arguments; the gradient of the first one ends the group's backward.
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


class _Pass:
    """The groups of one microbatch in one model chunk."""

    def __init__(self, resident: Collection[int] = (), following: Callable[[], _Pass | None] = lambda: None) -> None:
        self.groups: list[_Group] = []
        self.open: _Group | None = None
        self.gone: list[_Group] = []
        """The groups that were sent away and whose turn to come back has not come, in order."""
        self._resident = resident
        self._following = following

    def group(self, name: str, offload: ModuleOffload) -> _Group:
        """Return the group that is open under ``name``, or a new one."""
        if self.open is None or self.open.name != name:
            number = len(self.groups)
            self.open = _Group(name, self, offload, stays=number in self._resident)
            self.groups.append(self.open)
        return self.open

    def reload_one(self) -> None:
        """Give the last group that is gone its turn to come back, or that of the next pass where none is."""
        following = None if self.gone else self._following()
        gone = self.gone if following is None else following.gone
        if gone:
            gone.pop().reload()


class _OffloadedStorage:
    """One saved tensor, or the storage that it is most of: on the device, on the host, or both."""

    def __init__(self, flat: torch.Tensor, group: _Group) -> None:
        self.device: torch.Tensor | None = flat
        self.host: torch.Tensor | None = None
        self.group = group


class _Packed(NamedTuple):
    """A saved tensor as autograd holds it: a storage, and how the tensor lies in it."""

    storage: _OffloadedStorage
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Group:
    """What one run of a module saved."""

    def __init__(self, name: str, owner: _Pass, offload: ModuleOffload, *, stays: bool) -> None:
        self.name = name
        self.nbytes = 0
        """Of what it saved in large tensors; with those that another group has saved too."""
        self.is_entered = False
        self.is_away = False
        self._owner = owner
        self._offload = offload
        self._stays = stays
        self._storages: list[_OffloadedStorage] = []
        self._sent: object = None
        self._returned: object = None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _Packed:
        """Take over a tensor that is to be saved."""
        if self._stays or not self._offload.takes(tensor):
            return tensor
        self.nbytes += tensor.nbytes
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        if tensor.numel() >= _LEAST_COVERAGE * elements:
            base = tensor.detach().as_strided((elements,), (1,), 0)
            form = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        else:
            base = tensor.detach().contiguous().flatten()
            form = (tensor.size(), _contiguous_strides(tensor.size()), 0)
        self._storages.append(_OffloadedStorage(base, self))
        return _Packed(self._storages[-1], *form)

    def offload(self) -> None:
        """Begin to copy everything to the host, and free it, unless the group stays."""
        if self._stays:
            return
        stream = self._offload.streams[0]
        pairs = []
        for storage in self._storages:
            if storage.device is not None:
                storage.host = stream.host_like(storage.device)
                pairs.append((storage.host, storage.device))
        self._sent = stream.copy(pairs)
        for _, source in pairs:
            stream.keep_for_copies(source)
        for storage in self._storages:
            storage.device = None
        self.is_away = bool(self._storages)
        self._owner.gone.append(self)

    def reload(self) -> None:
        """Begin to bring everything back, if it has not come yet."""
        if self.is_away:
            self._bring_back()

    def _bring_back(self) -> None:
        stream = self._offload.streams[1]
        stream.wait(self._sent)
        pairs = []
        for storage in self._storages:
            if storage.host is not None:
                storage.device = stream.device_like(storage.host)
                pairs.append((storage.device, storage.host))
                storage.host = None
        self._returned = stream.copy(pairs)
        self._storages = []  # from now on autograd alone holds them
        self.is_away = False

    def arrived(self) -> None:
        """Wait until everything is back."""
        self.reload()
        self._offload.streams[1].wait(self._returned)
        self._returned = None

    def left(self, _grad: torch.Tensor) -> None:
        """The group's backward is over: another one may come back."""
        self._owner.reload_one()


def _unpack(packed: torch.Tensor | _Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    packed.storage.group.arrived()
    if packed.storage.device is None:
        raise RuntimeError("an offloaded activation was neither on the device nor on the host")
    return packed.storage.device.as_strided(packed.size, packed.stride, packed.offset)


def _contiguous_strides(size: torch.Size) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


KEEP_ALL = ModuleOffload((), smallest=0, fraction=0.0, order=PassOrder((), (), 0), device=torch.device("cpu"))
"""Offloads nothing."""
