"""The snapshot files of a folder: which rank each is of by its name, and which of a rank's to look at first.

The number after "rank" counts, or that of ``snap-0``; else the last number in which all names differ, without the tags
that a recording gives to further files of one process (``.oom``, ``.step100``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from oomscope.errors import SnapshotError

Announce: TypeAlias = Callable[[str, int, int], None]
"""Told what begins, and how many of how many are done where that is counted."""
SUFFIXES: Final = (".pickle", ".pkl", ".json")
COMPRESSED: Final = (".gz", ".zst", ".xz")
_RANK: Final = re.compile(r"(?:rank[^0-9a-z]?|^snap-(?=\d+\.))(\d+)", re.IGNORECASE)
_ENDING: Final = re.compile(r"\.(?:pickle|pkl|json)(?:\.\w+)?$")
_TAG: Final = re.compile(r"\.(?:oom|step\d+)(?:\.\d+)?$|\.[A-Za-z]+$")
_DEFAULT: Final = re.compile(r"snap-p?\d+(?=\.)")
"""What ``oomscope record`` calls a file unless it is told; any tag may follow."""
_FAILED: Final = re.compile(r"(?:^|[^A-Za-z])oom(?:[^A-Za-z]|$)")


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A snapshot file that could not be read."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A snapshot file of a folder that is not looked at."""

    file: str
    rank: int | None
    """Of which another file is; None where nothing says the rank."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """A snapshot file of a folder, before it is read."""

    path: Path
    rank: int | None
    """By its name; None where that does not tell."""
    stem: str
    """Alike for the files of one process."""


def snapshot_files(directory: Path) -> list[Path]:
    """Return the snapshot files of a folder, by name.

    Raises:
        SnapshotError: it holds none, or cannot be read.
    """
    try:
        entries = sorted(path for path in directory.iterdir() if path.is_file())
    except OSError as error:
        raise SnapshotError(f"cannot read: {error.strerror}", where=str(directory), remedy="name a folder") from error
    endings = tuple(suffix + packed for suffix in SUFFIXES for packed in ("", *COMPRESSED))
    found = [path for path in entries if path.name.endswith(endings)]
    if not found:
        remedy = f"name files with one of {', '.join(SUFFIXES)}"
        raise SnapshotError("no snapshot files in it", where=str(directory), remedy=remedy)
    return found


def rank_files(folder: Path) -> list[RankFile]:
    """Return the snapshot files of a folder, the one to look at first of each process.

    Raises:
        SnapshotError: it holds none, or cannot be read.
    """
    files = snapshot_files(folder)
    found = [
        RankFile(path=file, rank=rank, stem=_stem(file.name))
        for file, rank in zip(files, rank_numbers([file.name for file in files]), strict=True)
    ]
    return sorted(found, key=lambda file: _precedence(file.path))


def rank_numbers(names: Sequence[str]) -> list[int | None]:
    """Return the rank that each of some file names stands for; None where that cannot be told."""
    told = [_RANK.search(name) for name in names]
    if any(told):
        return [int(match[1]) if match else None for match in told]
    stems = list(dict.fromkeys(map(_stem, names)))
    rows = [[int(number) for number in re.findall(r"\d+", stem)] for stem in stems]
    if len({len(row) for row in rows}) != 1:
        return [None] * len(names)
    columns = [list(column) for column in zip(*rows, strict=True)][::-1]
    alone = [[0]] if len(stems) == 1 else []
    distinct = next((numbers for numbers in (*columns, *alone) if len(set(numbers)) == len(stems)), None)
    if distinct is None:
        return [None] * len(names)
    rank_of = dict(zip(stems, distinct, strict=True))
    return [rank_of[_stem(name)] for name in names]


def _stem(name: str) -> str:
    """Return a file's name without its endings and what tells the files of one process apart."""
    if own := _DEFAULT.match(name):
        return own[0]
    bare = _ENDING.sub("", name)
    while (shorter := _TAG.sub("", bare)) != bare:
        bare = shorter
    return bare


def _precedence(file: Path) -> tuple[int, int, float, str]:
    """By which the files of one process are ordered: that of the failure, the last one, of steps the latest, others."""
    bare = _ENDING.sub("", file.name)
    tags = bare.removeprefix(_stem(file.name))
    step = re.search(r"\.step(\d+)", tags)
    kind = 0 if ".oom" in tags or _FAILED.search(bare) else 2 if step else 1 if not tags else 3
    return kind, -int(step[1]) if step else 0, -file.stat().st_mtime if kind == 3 else 0, file.name
