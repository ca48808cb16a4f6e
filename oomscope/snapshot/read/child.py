"""The process that reads one untrusted file: it bounds itself, decodes standard input and answers with flat tables.

A byte of input buys a fixed amount of memory and processor time, so a small file cannot ask for much, and what crashes
the interpreter (a damaged or hostile pickle can) ends nothing but this process. It imports neither numpy nor torch.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import signal
import stat
import sys
import time
from typing import BinaryIO, Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.read.decode import decode
from oomscope.snapshot.read.flatten import flatten
from oomscope.snapshot.read.tables import Tables
from oomscope.units import MiB, format_size

STATM: Final = "/proc/self/statm"
MOST_ALARM: Final = 2**31 - 1
"""Seconds that a timer of the system takes."""


def main(limits: str) -> None:
    """Read the file on standard input and write its tables, or why there are none, to standard output.

    Args:
        limits: JSON object of the fields of :class:`~oomscope.snapshot.read.limits.Limits`, and what any file may
            take.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    bounds = json.loads(limits)
    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        signal.alarm(min(bounds["seconds"], MOST_ALARM))  # waiting for a writer that stalls takes no processor time
    gc.disable()  # plain values have no cycles worth finding; looking for them takes most of the time
    answer(sys.stdin.buffer, sys.stdout.buffer, bounds)
    os._exit(0)  # a million objects need not be given back one by one


def answer(file: BinaryIO, out: BinaryIO, limits: dict[str, int]) -> None:
    """Write the tables of ``file``, or the refusal, to ``out``."""
    budget = _Budget(limits)
    try:
        document = decode(
            file,
            file_bytes=limits["file"],
            unpacked_bytes=limits["unpacked"],
            ratio=limits["unpacked_per_byte"],
            consumed=budget.earn,
        )
        tables = flatten(document, where="", depth=limits["depth"])
    except SnapshotError as error:
        tables = refusal(error.message, error.remedy)
    except MemoryError:
        tables = refusal(
            f"reading it needs more memory than the {format_size(budget.memory)} allowed for its length",
            "record or copy the snapshot again, or allow more",
        )
    budget.release()
    tables.write(out)


def refusal(message: str, remedy: str | None) -> Tables:
    """Return the tables that say why there are none."""
    return Tables({}, {"error": message, "remedy": remedy})


class _Budget:
    """The soft resource limits of this process, which grow with the input.

    Args:
        limits: as for :func:`main`.
    """

    def __init__(self, limits: dict[str, int]) -> None:
        self._limits = limits
        self._own_memory = _address_space()
        self._own_seconds = math.ceil(time.process_time())
        self._earned = -1
        self.memory = 0
        """Bytes that the file may take now."""
        _set_soft(resource.RLIMIT_CORE, 0)
        self.earn(0)

    def earn(self, total: int) -> None:
        """Allow what ``total`` bytes of input may take."""
        if total <= self._earned:
            return
        limits, self._earned = self._limits, total
        self.memory = min(limits["memory"], limits["memory_to_start"] + total * limits["memory_per_byte"])
        seconds = min(limits["seconds"], limits["seconds_to_start"] + total * limits["seconds_per_mib"] // MiB)
        if self._own_memory:
            _set_soft(resource.RLIMIT_AS, self._own_memory + self.memory)
        _set_soft(resource.RLIMIT_CPU, self._own_seconds + seconds)

    @staticmethod
    def release() -> None:
        """Lift the limit on memory: what is left to do is to hand back what is there."""
        _set_soft(resource.RLIMIT_AS, resource.RLIM_INFINITY)


def _address_space() -> int:
    """Return the bytes of address space in use; 0 where the system does not say (macOS, which bounds none either)."""
    try:
        statm = os.open(STATM, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(statm, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(statm)


def _set_soft(kind: int, value: int) -> None:
    """Set a soft limit, no higher than the hard one."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = hard if value == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))
