"""What a dispatch mode does not see: storages that are resized, host memory that is pinned, tensors that are swapped,
and literals that are built on the device. The functions of torch that do these are replaced while a session is open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from oomscope.probe.sim.backend import module
from oomscope.probe.sim.host import HostMemory
from oomscope.probe.sim.memory import SimMemory
from oomscope.probe.sim.position import Position
from oomscope.probe.sim.replace import replaced

aten = torch.ops.aten


@contextmanager
def seen(memory: SimMemory, host: HostMemory, position: Position, fake: FakeTensorMode) -> Iterator[None]:
    """Have what a dispatch mode misses reach the simulated memory.

    Args:
        memory: learns of storages that change their size.
        host: knows which host storages are pinned.
        position: where the program is.
        fake: the mode that shapes are worked out in.
    """
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        tenant = memory.tenant_of(storage)
        if tenant is not None:
            origin = position.origin(sys._getframe(1), module.current_stream().stream_id)
            memory.resized(storage, origin, tenant.category)
        return result

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        pinned: torch.Tensor = aten._pin_memory(tensor)
        return pinned

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return isinstance(tensor, FakeTensor) and host.is_pinned(tensor.untyped_storage())

    swap: Callable[..., None] = torch.utils.swap_tensors

    def swap_tensors(first: torch.Tensor, second: torch.Tensor) -> None:
        _forget_conversions(fake)
        swap(first, second)

    with (
        replaced(torch.UntypedStorage, resize_=resize_),
        replaced(torch.Tensor, pin_memory=pin_memory, is_pinned=is_pinned),
        replaced(torch.utils, swap_tensors=swap_tensors),
        _literals_built_on_host(),
    ):
        yield


def _forget_conversions(fake: FakeTensorMode) -> None:
    """Drop the fake mode's weak references to tensors it has met: a tensor that has any cannot be swapped.

    ``torch.nn.Module.to`` swaps parameters, and would otherwise fail at the second conversion.
    """
    converter = fake.fake_tensor_converter.meta_converter
    converter.tensor_memo.clear()
    converter.storage_memo.clear()


@contextmanager
def _literals_built_on_host() -> Iterator[None]:
    """Have ``torch.tensor(values, device=…)`` build on the host and copy, as it does under fake tensors.

    Otherwise it copies with all modes switched off, and the device has no kernel to copy with.
    """
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
