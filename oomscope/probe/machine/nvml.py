"""What the driver says of a card's memory (NVML, module ``pynvml`` of nvidia-ml-py): the bytes torch does not see.

torch counts its own allocator's bytes. CUDA contexts, NCCL, cuBLAS handles and other processes take memory of the
same card, and NVML is where that shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oomscope.errors import MachineUnfitError


@dataclass(frozen=True, kw_only=True)
class CardMemory:
    """One reading of a card, in bytes."""

    total_bytes: int
    """Bytes that programs can use: the card's without those that the driver keeps for itself."""
    used_bytes: int
    """Bytes held by all processes together."""
    driver_version: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """One card of this machine."""

    index: int
    """Number of the card as the driver counts, which CUDA_VISIBLE_DEVICES does not change."""
    name: str
    uuid: str
    memory: CardMemory
    processes: tuple[int, ...]
    """Ids of processes that hold a context on the card and can be seen: inside a container none may be."""


def list_cards() -> tuple[Card, ...]:
    """Return a reading of every card; nothing is allocated on any.

    Raises:
        MachineUnfitError: the driver cannot be asked.
    """
    cards = []
    with _session() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                processes = tuple(sorted(int(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
            except nvml.NVMLError:  # a card that is cut into parts (MIG), Windows' subsystem for Linux
                processes = ()
            name, uuid = str(nvml.nvmlDeviceGetName(handle)), str(nvml.nvmlDeviceGetUUID(handle))
            memory = _memory(nvml, handle)
            cards.append(Card(index=index, name=name, uuid=uuid, memory=memory, processes=processes))
    return tuple(cards)


def read_card(uuid: str) -> CardMemory:
    """Return a reading of the card with this UUID (as in ``torch.cuda.get_device_properties().uuid``).

    Driver-reserved memory is not counted as used: ``nvmlMemory_v2_t`` tells it apart, as cudaMemGetInfo does.

    Raises:
        MachineUnfitError: the driver cannot be asked, or knows no such card.
    """
    with _session() as nvml:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
        return _memory(nvml, handle)


def _memory(nvml: Any, handle: Any) -> CardMemory:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return CardMemory(
        total_bytes=int(memory.total) - int(memory.reserved),
        used_bytes=int(memory.used),
        driver_version=str(nvml.nvmlSystemGetDriverVersion()),
    )


@contextmanager
def _session() -> Iterator[Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise MachineUnfitError(
            f"the NVIDIA driver reports no memory ({error})",
            where="NVML",
            remedy="see that nvidia-smi works here, or give --backend virtual",
        ) from error
