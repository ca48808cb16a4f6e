"""The directories that are written to: caches, what cannot be made anew, temporary files. Looking makes none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from oomscope.bisect.run.places import Places
from oomscope.doctor.check import Check, State
from oomscope.units import GiB, format_size

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
