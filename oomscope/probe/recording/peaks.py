"""The allocator's peaks, also of a program that resets them: many do, to print the peak of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_PEAK = ".peak"
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
"""What resets them: functions of ``torch._C`` that take the device."""


class Peaks:
    """Remembers peaks of ``torch.cuda.memory_stats`` that were reset."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, int]] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take note of each reset of peaks while the block runs."""
        resets = {name: getattr(torch._C, name) for name in _RESETS if hasattr(torch._C, name)}
        for name, reset in resets.items():
            setattr(torch._C, name, self._noting(reset))
        try:
            yield
        finally:
            for name, reset in resets.items():
                setattr(torch._C, name, reset)

    def stats(self, device: int) -> dict[str, int]:
        """Return the statistics of ``device``, with peaks of the whole run; empty where it was not used."""
        now = {name: int(value) for name, value in torch.cuda.memory_stats(device).items()}
        before = self._before.get(device, {})
        return {name: max(value, before.get(name, 0)) if name.endswith(_PEAK) else value for name, value in now.items()}

    def _noting(self, reset: Callable[[Any], None]) -> Callable[[Any], None]:
        def reset_noted(device: Any) -> None:
            index = int(device)
            self._before[index] = self.stats(index)
            reset(device)

        return reset_noted
