"""Lends the machine's GPUs to probes that run side by side, each to one at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from oomscope.probe.job import ProbeJob
from oomscope.probe.machine.environment import environment_of

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")


def visible_cards(environment: Mapping[str, str], devices: Path = _DEVICES) -> tuple[str, ...]:
    """Return the NVIDIA cards that ``environment`` lets a process see, as ``CUDA_VISIBLE_DEVICES`` names them.

    Without that variable all of the machine's, which the driver lists under ``devices`` (``nvidia0``, ``nvidia1``, …).
    An index of -1 hides all that come after it (CUDA C++ Programming Guide, environment variables).
    """
    if (chosen := environment.get(_VISIBLE)) is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
        return tuple(names[: names.index("-1")] if "-1" in names else names)
    return tuple(map(str, range(len(list(devices.glob("nvidia[0-9]*"))))))


class Cards:
    """Cards to lend.

    Args:
        names: as ``CUDA_VISIBLE_DEVICES`` names them; without any, jobs are left as they are.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._free: queue.SimpleQueue[str] | None = queue.SimpleQueue() if names else None
        for name in names:
            if self._free is not None:
                self._free.put(name)

    @contextmanager
    def lent(self, job: ProbeJob) -> Iterator[ProbeJob]:
        """Yield ``job`` with a card for itself, waiting for one; a job on a virtual card needs none.

        A job that chooses its card itself keeps its choice.
        """
        if self._free is None or job.backend == "virtual" or _VISIBLE in environment_of(job, {}):
            yield job
            return
        card = self._free.get()
        try:
            yield replace(job, environment={**job.environment, _VISIBLE: card})
        finally:
            self._free.put(card)
