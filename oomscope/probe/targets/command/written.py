"""Which files a command wrote: a checkout may hold older ones of the same names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Stamp(NamedTuple):
    """Tells a file that was written anew."""

    inode: int
    modified_ns: int
    size: int


def stamps_of(repo: Path, pattern: str | None) -> dict[Path, Stamp]:
    """Return the files below ``repo`` that ``pattern`` names; none without one."""
    found = {}
    for path in repo.glob(pattern) if pattern is not None else ():
        if path.is_file():
            status = path.stat()
            found[path] = Stamp(status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def written_since(repo: Path, pattern: str, before: Mapping[Path, Stamp]) -> list[Path]:
    """Return those files that are new, or others than ``before``, which :func:`stamps_of` returned then."""
    return sorted(path for path, stamp in stamps_of(repo, pattern).items() if before.get(path) != stamp)
