"""Cores and memory of the host, as far as this process may use them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from oomscope.doctor.check import Check, State
from oomscope.units import GiB, KiB, format_size

LITTLE = 2 * GiB
"""A probe on a virtual card holds about half a GiB, and large models more."""
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_GROUP_USED = Path("/sys/fs/cgroup/memory.current")


def host_check(meminfo: Path = Path("/proc/meminfo"), limit: Path = _GROUP_LIMIT, used: Path = _GROUP_USED) -> Check:
    """Return what the host has, less what a container is kept from.

    Args:
        meminfo: the kernel's account, proc(5).
        limit: the most that this control group may hold.
        used: what it holds.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = free_memory(meminfo, limit, used)
    found = f"{'1 core' if cores == 1 else f'{cores} cores'}"
    values: dict[str, int | str | None] = {"cores": cores, "free_bytes": free}
    if free is None:
        return Check(part="host", state=State.OK, found=f"{found}, free memory unknown", values=values)
    found = f"{found}, {format_size(free)} of memory free"
    if free >= LITTLE:
        return Check(part="host", state=State.OK, found=found, values=values)
    return Check(
        part="host",
        state=State.NOTE,
        found=found,
        disables="the kernel may kill probes of large models",
        remedy="run fewer at once (--jobs 1), or free some",
        values=values,
    )


def free_memory(meminfo: Path, limit: Path, used: Path) -> int | None:
    """Return the bytes that may still be taken; None where nothing tells."""
    rooms = []
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        rooms.append(int(fields["MemAvailable"].split()[0]) * KiB)
    with contextlib.suppress(OSError, ValueError):  # no such group, or ``max``
        rooms.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(rooms, default=None)
