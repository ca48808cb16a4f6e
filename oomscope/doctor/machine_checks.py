"""What this machine offers: cards and their memory, the host, and the directories that probes need."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from oomscope.bisect.run.places import Places
from oomscope.doctor.check import Check, State
from oomscope.errors import MachineUnfitError
from oomscope.probe.machine.nvml import Card, list_cards
from oomscope.units import GiB, KiB, MiB, format_size

DRIVER = Path("/proc/driver/nvidia/version")
WORTH_TELLING = 64 * MiB
"""What a display takes of a card is none of anybody's business."""
_NEEDS_IT = "--backend cuda"


def gpu_checks(environment: Mapping[str, str], driver: Path = DRIVER) -> Iterator[Check]:
    """Yield the checks of driver, NVML and every card."""
    cards = _cards()
    loaded = _loaded(driver) or _told(cards)
    yield _driver(loaded)
    yield _nvml(cards, has_driver=bool(loaded))
    if not isinstance(cards, str):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        yield from (_card(card, visible) for card in cards)


def _cards() -> tuple[Card, ...] | str:
    """Return the cards, or in one line why they cannot be read."""
    try:
        return list_cards()
    except MachineUnfitError as error:
        return error.message
    except ImportError:
        return "the module pynvml is not installed"
    except (AttributeError, TypeError):
        return "the module pynvml is older than what is needed"


def _told(cards: tuple[Card, ...] | str) -> str | None:
    """Return the driver that NVML names: Windows' subsystem for Linux has one without a kernel module of its own."""
    return None if isinstance(cards, str) or not cards else f"driver {cards[0].memory.driver_version}"


def _loaded(driver: Path) -> str | None:
    """Return the kernel module's own line; None where none is loaded."""
    try:
        return driver.read_text(errors="replace").splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return None


def _driver(loaded: str | None) -> Check:
    if loaded is not None:
        return Check(part="NVIDIA driver", state=State.OK, found=" ".join(loaded.split()))
    return Check(
        part="NVIDIA driver",
        state=State.MISSING,
        found="no kernel module is loaded",
        disables=_NEEDS_IT,
        remedy="on a machine with a GPU: install the driver, or give the container access to it",
    )


def _nvml(cards: tuple[Card, ...] | str, *, has_driver: bool) -> Check:
    name = module_version()
    if isinstance(cards, str):
        remedy = "pip install --force-reinstall nvidia-ml-py" if has_driver else "see the NVIDIA driver above"
        if is_deprecated_module():
            remedy = "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
        return Check(part="NVML", state=State.MISSING, found=f"{name}: {cards}", disables=_NEEDS_IT, remedy=remedy)
    if is_deprecated_module():
        return Check(
            part="NVML",
            state=State.NOTE,
            found=f"{name}: the deprecated package pynvml stands before it",
            disables="its answers are those of an old release",
            remedy="pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py",
        )
    return Check(part="NVML", state=State.OK, found=f"{name}, {'1 card' if len(cards) == 1 else f'{len(cards)} cards'}")


def module_version() -> str:
    """Return which package the module ``pynvml`` is said to come from."""
    for name in ("nvidia-ml-py", "pynvml"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "nvidia-ml-py"


def is_deprecated_module() -> bool:
    """Whether ``import pynvml`` finds the package of that name and not nvidia-ml-py's module, a single file."""
    try:
        found = importlib.util.find_spec("pynvml")
    except (ImportError, ValueError):
        return False
    return found is not None and found.submodule_search_locations is not None


def _card(card: Card, visible: str | None) -> Check:
    found = f"{card.name}, {format_size(card.memory.total_bytes)}, {format_size(card.memory.used_bytes)} in use"
    values: dict[str, int | str | None] = {
        "name": card.name,
        "uuid": card.uuid,
        "total_bytes": card.memory.total_bytes,
        "used_bytes": card.memory.used_bytes,
        "processes": len(card.processes),
        "CUDA_VISIBLE_DEVICES": visible,
    }
    part = f"card {card.index}"
    if card.memory.used_bytes <= WORTH_TELLING:
        return Check(part=part, state=State.OK, found=found, values=values)
    pids = ", ".join(str(pid) for pid in card.processes)
    return Check(
        part=part,
        state=State.NOTE,
        found=f"{found} by {f'process {pids}' if pids else 'processes that cannot be seen from here'}",
        disables="probes on it have that much less, and runs are tagged foreign where that decides",
        remedy="end them, or choose another card by CUDA_VISIBLE_DEVICES",
        values=values,
    )


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


MOST_FILES = 20_000
"""Files that are counted of a directory, so that a large one is answered for in time."""
LITTLE = GiB
"""Free bytes below which a search, or a snapshot, is likely to find no room."""


def place_checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of all directories."""
    try:
        places = Places.default(environment)
    except RuntimeError:  # no HOME, and no entry of the user's among the accounts
        yield _homeless()
    else:
        state = places.state or places.root
        yield _place("cache", places.root, "bisect, unless --state names another; replays compile the engine each time")
        yield _place("state", state, "bisect and gate, unless --state and --ledger name others")
    yield _temporary()


def _homeless() -> Check:
    return Check(
        part="cache",
        state=State.MISSING,
        found="there is no home directory",
        disables="bisect and gate, unless --state and --ledger name a place",
        remedy="set HOME, or XDG_CACHE_HOME and XDG_STATE_HOME",
    )


def _place(part: str, path: Path, disables: str) -> Check:
    base = existing(path)
    values: dict[str, int | str | None] = {"path": str(path)}
    if hindrance := _hindrance(base):
        found = f"{path}: {base} {hindrance}"
        remedy = f"set XDG_{part.upper()}_HOME to a directory that may be written to"
        return Check(part=part, state=State.MISSING, found=found, disables=disables, remedy=remedy, values=values)
    taken, free = size_of(path), shutil.disk_usage(base).free
    values |= {"size_bytes": taken.bytes, "files": taken.files, "free_bytes": free}
    size = f"{'more than ' if taken.is_cut else ''}{format_size(taken.bytes)}"
    found = f"{path}: {size if path.exists() else 'not made yet'}, {format_size(free)} free"
    if free >= LITTLE:
        return Check(part=part, state=State.OK, found=found, values=values)
    return Check(
        part=part,
        state=State.NOTE,
        found=found,
        disables="clones and results may find no room",
        remedy=f"free some, or set XDG_{part.upper()}_HOME to a directory on another disk",
        values=values,
    )


def _hindrance(base: Path) -> str:
    """Return why nothing can be made in ``base``; empty where it can. What the kernel invents has no room at all."""
    if not base.is_dir():
        return "is no directory"
    if not os.access(base, os.W_OK | os.X_OK):
        return "may not be written to"
    return "" if shutil.disk_usage(base).total else "belongs to no disk, so that no file can be made there"


def _temporary() -> Check:
    try:
        path = Path(tempfile.gettempdir())
        free = shutil.disk_usage(path).free
    except OSError:
        return Check(
            part="temporary files",
            state=State.FAILS,
            found="no directory for them may be written to",
            disables="every probe",
            remedy="set TMPDIR to a folder with some room",
        )
    state = State.OK if free >= LITTLE else State.NOTE
    return Check(
        part="temporary files",
        state=state,
        found=f"{path}: {format_size(free)} free",
        disables="" if state is State.OK else "snapshots and logs may find no room",
        remedy="" if state is State.OK else "free some, or set TMPDIR to a folder on another disk",
        values={"path": str(path), "free_bytes": free},
    )


def existing(path: Path) -> Path:
    """Return ``path``, or the nearest directory above it that is there."""
    return next((place for place in (path, *path.parents) if place.exists()), path)


@dataclass(frozen=True)
class Taken:
    """What lies in a directory."""

    bytes: int
    files: int
    is_cut: bool
    """There is more than was counted."""


def size_of(path: Path, most: int = MOST_FILES) -> Taken:
    """Return what the files below ``path`` hold; links are not followed, and what cannot be read counts nothing."""
    size = files = 0
    for folder, _, names in os.walk(path):
        for name in names:
            if files == most:
                return Taken(size, files, is_cut=True)
            files += 1
            try:
                size += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
    return Taken(size, files, is_cut=False)
