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
import sys
import time
from typing import BinaryIO, Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.read.decode import decode
from oomscope.snapshot.read.limits import MEMORY_PER_BYTE, MEMORY_TO_START, SECONDS_PER_MIB, SECONDS_TO_START
from oomscope.snapshot.read.reader import AGAIN
from oomscope.snapshot.read.snapshot_fields import flatten
from oomscope.snapshot.read.tables import Tables
from oomscope.units import MiB, format_size

STATM: Final = "/proc/self/statm"


def main(limits: str) -> None:
    """Read the file on standard input within ``limits``, a JSON object, and answer on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # plain values have no cycles worth finding; looking for them takes most of the time
    answer(sys.stdin.buffer, sys.stdout.buffer, json.loads(limits))
    os._exit(0)  # a million objects need not be given back one by one


def answer(file: BinaryIO, out: BinaryIO, limits: dict[str, int]) -> None:
    """Write the tables of ``file``, or the refusal, to ``out``."""
    budget = _Budget(limits)
    try:
        document = decode(file, file_bytes=limits["file"], unpacked_bytes=limits["unpacked"], consumed=budget.earn)
        tables = flatten(document, where="")
    except SnapshotError as error:
        tables = Tables({}, {"error": error.message, "remedy": error.remedy})
    except MemoryError:
        message = f"reading it needs more memory than the {format_size(budget.memory)} allowed for its length"
        tables = Tables({}, {"error": message, "remedy": f"{AGAIN}, or allow more"})
    _set_soft(resource.RLIMIT_AS, resource.RLIM_INFINITY)  # all that is left is to hand over the result
    tables.write(out)


class _Budget:
    """The soft resource limits of this process, which grow with the input."""

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
        self._earned = total
        self.memory = min(self._limits["memory"], MEMORY_TO_START + total * MEMORY_PER_BYTE)
        seconds = min(self._limits["seconds"], SECONDS_TO_START + total * SECONDS_PER_MIB // MiB)
        if self._own_memory:
            _set_soft(resource.RLIMIT_AS, self._own_memory + self.memory)
        _set_soft(resource.RLIMIT_CPU, self._own_seconds + seconds)


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
