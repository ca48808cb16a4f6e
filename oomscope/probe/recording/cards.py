"""The card under a recorded run, real or virtual: how large it is, and what others hold of it.

A real card is weighed by the driver (NVML), and a smaller one is played on it by the allocator's memory fraction. A
virtual card is as large as the process that plays it was told.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from oomscope.errors import MachineUnfitError
from oomscope.probe.machine.nvml import list_cards, read_card
from oomscope.probe.measurement import DeviceBudget
from oomscope.probe.recording.settings import SessionSettings
from oomscope.units import MiB, format_size
from oomscope.virtual.cards import Card, card_is_supported

_NOISE = 16 * MiB
"""Changes of memory outside the allocator up to this are not worth a word."""


class RealCard:
    """The card that is there.

    What others hold is read here, before the target is imported: a harness may use CUDA while it is imported.

    Args:
        settings: the limit, or the card whose total is the limit.

    Raises:
        MachineUnfitError: a run without a limit was asked for, or the driver cannot be asked.
    """

    has_clock = True
    """Whether times of events on the card mean anything."""

    def __init__(self, settings: SessionSettings) -> None:
        if settings.unlimited:
            raise MachineUnfitError("a card without a limit can only be virtual", remedy="use --backend virtual")
        self._settings = settings
        self._before = {card.uuid: card.memory.used_bytes for card in list_cards()}
        self._fraction: float | None = None

    def begin(self, index: int) -> DeviceBudget:
        """Measure what a context of this process costs, and set the card's size."""
        torch.cuda.synchronize(index)
        self._index = index
        properties = torch.cuda.get_device_properties(index)
        self._name, total = str(properties.name), int(properties.total_memory)
        uuid = str(properties.uuid)
        self._uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._reading = read_card(self._uuid)
        others = self._before.get(self._uuid, 0)
        own = self._reading.used_bytes - others - torch.cuda.memory_reserved(index)
        self._outside = self._reading.used_bytes - torch.cuda.memory_reserved(index)
        budget = DeviceBudget(
            gpu=self._name,
            limit_bytes=self._limit(total),
            non_torch_bytes=max(0, own),
            other_process_bytes=others,
        )
        if budget.available_bytes == 0:
            raise MachineUnfitError(
                f"other processes hold {format_size(others)} of the card, which leaves nothing",
                where=budget.gpu,
                remedy="end them or use another card",
            )
        if budget.limit_bytes == total and not self._settings.limit_bytes:
            return budget
        self._fraction = fraction_for(budget.available_bytes, total)
        torch.cuda.memory.set_per_process_memory_fraction(self._fraction, index)
        return replace(budget, card_bytes=total, fraction=self._fraction)

    def end(self, reserved_bytes: int) -> tuple[str, ...]:
        """Lift the limit; return a note where memory outside the allocator changed while the target ran.

        Args:
            reserved_bytes: what the allocator holds at the end.
        """
        if self._fraction is not None:
            torch.cuda.memory.set_per_process_memory_fraction(1.0, self._index)
        change = read_card(self._uuid).used_bytes - reserved_bytes - self._outside
        shown = format_size(change, signed=True)
        note = (
            f"memory of the card outside the allocator changed by {shown} during the run (libraries, other processes)"
        )
        return (note,) if abs(change) > _NOISE else ()

    def versions(self) -> dict[str, str]:
        """Return driver, card and its capability."""
        major, minor = torch.cuda.get_device_capability(self._index)
        return {"driver": self._reading.driver_version, "gpu": self._name, "capability": f"{major}.{minor}"}

    def _limit(self, total: int) -> int:
        gpu = self._settings.gpu
        limit = self._settings.limit_bytes or (gpu.total_bytes if gpu else total)
        if limit > total:
            raise MachineUnfitError(
                f"{self._name} has {format_size(total)}, less than the {format_size(limit)} asked for",
                where="--limit" if self._settings.limit_bytes else "--gpu",
                remedy="ask for less, or use --backend virtual",
            )
        return limit


class VirtualCard:
    """A virtual card. The process chooses it here, before its first call of CUDA.

    Args:
        settings: the card, its limit, and what others hold of it.

    Raises:
        MachineUnfitError: this torch has no kernels for the card: on a real one it would fail.
    """

    has_clock = False

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        if settings.gpu is not None:
            check_kernels(settings.gpu, str(torch._C._cuda_getArchFlags() or "").split())
        os.environ.update(settings.card_variables())

    def begin(self, index: int) -> DeviceBudget:
        """Return the card as it was chosen."""
        torch.cuda.synchronize(index)
        return self._settings.budget()

    def end(self, reserved_bytes: int) -> tuple[str, ...]:
        """Return no notes: nothing outside this process changes a virtual card."""
        return ()

    def versions(self) -> dict[str, str]:
        """Return the card's capability."""
        gpu = self._settings.gpu
        return {"capability": f"{gpu.capability[0]}.{gpu.capability[1]}"} if gpu else {}


def check_kernels(card: Card, arch_list: Sequence[str]) -> None:
    """Refuse a card that torch was not built for.

    Args:
        card: the card.
        arch_list: what torch was built for, as ``torch.cuda.get_arch_list()`` returns it; empty where it does not say.

    Raises:
        MachineUnfitError: torch has no kernels for the card.
    """
    if arch_list and not card_is_supported(card, arch_list):
        major, minor = card.capability
        raise MachineUnfitError(
            f"torch {torch.__version__} has no kernels for a {card.name} (compute capability {major}.{minor}), only "
            f"for {' '.join(arch_list)}",
            where="--gpu",
            remedy="name another card, or install a torch that was built for this one",
        )


def fraction_for(available_bytes: int, total_bytes: int) -> float:
    """Return the fraction under which torch allows exactly ``available_bytes`` of a card with ``total_bytes``.

    torch computes ``size_t(fraction * total)`` (CUDACachingAllocator.cpp, ``setMemoryFraction``) and takes 1.0 for
    no limit at all.
    """
    fraction = available_bytes / total_bytes
    while int(fraction * total_bytes) < available_bytes:
        fraction = math.nextafter(fraction, math.inf)
    return min(fraction, 1.0)
