"""What setups wrote, kept by what it was made of: a directory each, there whole or not at all.

Several slots and processes share it. Whoever holds the lock of a build makes it, lays it out or removes it; the kernel
lets go of the lock when the holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from oomscope.files import real_path, write_whole
from oomscope.probe.rooms import remove_tree, room

MOST_BYTES = 10 * 1024**3
"""All builds together; those that were not used for longest are removed first."""

_FILES = "files"
_LIST = "files.json"
_LOCK_SUFFIX = ".lock"
_LOOK_S = 0.1


@dataclass(frozen=True)
class Build:
    """One entry, whose lock the caller holds."""

    directory: Path

    def lay_out(self, place: Path) -> bool:
        """Copy what is kept into the checkout ``place``; return False, having copied nothing, where that cannot be.

        It cannot where nothing is kept, where what is kept was damaged, and where one of the files is there already or
        would lie outside ``place``.
        """
        kept = self._kept()
        if kept is None or not all(_is_free(place, path) for path in kept):
            return False
        for path in kept:
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.directory / _FILES / path, target, follow_symlinks=False)
        os.utime(self.directory)
        return True

    def bytes(self) -> int:
        """Return how much is kept."""
        return sum((self._kept() or {}).values())

    def _kept(self) -> dict[str, int] | None:
        """Return the sizes in bytes of the files by path, if all are there."""
        try:
            kept: dict[str, int] = json.loads((self.directory / _LIST).read_bytes())
            whole = all((self.directory / _FILES / path).lstat().st_size == size for path, size in kept.items())
        except (OSError, ValueError, AttributeError):
            return None
        return kept if whole else None


@dataclass(frozen=True)
class BuildCache:
    """Builds under ``root``, which is made when first needed.

    Args:
        root: where they are.
        most_bytes: how much all of them may take.
    """

    root: Path
    most_bytes: int = MOST_BYTES

    @contextmanager
    def held(self, name: str, check: Callable[[], None]) -> Iterator[Build]:
        """Yield the build ``name``, there or not, for the caller alone.

        Args:
            name: a file name that tells it from all others.
            check: called while another holds it; raises to give up.

        Raises:
            OSError: the place cannot be written to.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        while True:
            with self._lock(name).open("ab") as file:
                if _take(file) and _is_same(file, self._lock(name)):
                    yield Build(self.root / name)
                    return
            check()
            time.sleep(_LOOK_S)

    def keep(self, build: Build, place: Path, paths: Sequence[str]) -> bool:
        """Keep the files ``paths`` of the checkout ``place`` as ``build``, which is held.

        Return False where they alone would take more than all builds may.

        Raises:
            OSError: they cannot be copied.
        """
        sizes = {path: (place / path).lstat().st_size for path in paths}
        if sum(sizes.values()) > self.most_bytes:
            return False
        with room(self.root, "new") as made:
            for path in paths:
                target = made / _FILES / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(place / path, target, follow_symlinks=False)
            write_whole(made / _LIST, json.dumps(sizes).encode(), force=True)
            remove_tree(build.directory)
            made.rename(build.directory)
        self._prune(build)
        return True

    def _prune(self, newest: Build) -> None:
        """Remove builds that nobody holds, longest unused first, until all take at most what they may."""
        builds = [Build(lock.with_suffix("")) for lock in self.root.glob(f"*{_LOCK_SUFFIX}")]
        by_age = sorted((build for build in builds if build.directory.is_dir() and build != newest), key=_used)
        total = newest.bytes() + sum(build.bytes() for build in by_age)
        for build in by_age:
            if total <= self.most_bytes:
                return
            total -= self._remove(build)

    def _remove(self, build: Build) -> int:
        """Remove ``build`` unless somebody holds it; return the bytes that this spares."""
        lock = self._lock(build.directory.name)
        with contextlib.suppress(OSError), lock.open("ab") as file:
            if _take(file) and _is_same(file, lock):
                size = build.bytes()
                remove_tree(build.directory)
                lock.unlink()
                return size
        return 0

    def _lock(self, name: str) -> Path:
        return self.root / f"{name}{_LOCK_SUFFIX}"


def _used(build: Build) -> float:
    with contextlib.suppress(OSError):
        return build.directory.stat().st_mtime
    return 0.0


def _is_free(place: Path, path: str) -> bool:
    """Whether nothing lies at ``path`` and the directories on the way, as far as they exist, lie in ``place``."""
    target = place / path
    return not os.path.lexists(target) and real_path(target.parent).is_relative_to(real_path(place))


def _take(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(file: BinaryIO, path: Path) -> bool:
    """Whether ``file`` is still the one that has this name, not one that was removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
