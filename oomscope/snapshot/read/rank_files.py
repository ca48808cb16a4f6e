"""The snapshot files of a folder: the rank of each by its name, and the order of a rank's files.

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
_RANK: Final = re.compile(r"(?:(?<![a-z])rank[^0-9a-z]?|^snap-(?=\d+\.))(\d+)", re.IGNORECASE)
_ENDING: Final = re.compile(r"\.(?:pickle|pkl|json)(?:\.\w+)?$")
_TAG: Final = re.compile(r"\.(?:oom|step\d+)(?:\.\d+)?$")
_WORD: Final = re.compile(r"\.[A-Za-z]+$")
"""Suffix that is a tag if there is a file without it."""
_STEP: Final = re.compile(r"[._-]step[_-]?(\d+)", re.IGNORECASE)
_DEFAULT: Final = re.compile(r"snap-p?\d+(?=\.)")
"""Default name of a file of ``oomscope record``; any tag may follow."""
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
    """Rank of the file, which has another file; None where the rank is not known."""


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """A snapshot file of a folder, before it is read."""

    path: Path
    rank: int | None
    """Rank in the name; None where the name has none."""
    stem: str
    """Part of the name that the files of one process share."""


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
    names = [file.name for file in files]
    found = [
        RankFile(path=file, rank=rank, stem=stem)
        for file, rank, stem in zip(files, rank_numbers(names), _stems(names), strict=True)
    ]
    return sorted(found, key=lambda each: (_process(each), *_precedence(each.path, each.stem)))


def _process(file: RankFile) -> tuple[int, str]:
    """Sort key of files: by rank, then those without a rank in their names."""
    return (1 << 63, file.stem) if file.rank is None else (file.rank, "")


def rank_numbers(names: Sequence[str]) -> list[int | None]:
    """Return the rank that each of some file names stands for; None where that is not known."""
    matches = [_RANK.search(name) for name in names]
    if any(matches):
        return [int(match[1]) if match else None for match in matches]
    stem_of = dict(zip(names, _stems(names), strict=True))
    stems = list(dict.fromkeys(stem_of.values()))
    rows = [[int(number) for number in re.findall(r"\d+", stem)] for stem in stems]
    if len({len(row) for row in rows}) != 1:
        return [None] * len(names)
    columns = [list(column) for column in zip(*rows, strict=True)][::-1]
    alone = [[0]] if len(stems) == 1 else []
    distinct = next((numbers for numbers in (*columns, *alone) if len(set(numbers)) == len(stems)), None)
    if distinct is None:
        return [None] * len(names)
    rank_of = dict(zip(stems, distinct, strict=True))
    return [rank_of[stem_of[name]] for name in names]


def _stems(names: Sequence[str]) -> list[str]:
    """Return the names of files without their endings and what distinguishes the files of one process."""
    bare = [_ENDING.sub("", name) for name in names]
    return [_stem(name, frozenset(bare)) for name in bare]


def _stem(name: str, names: frozenset[str]) -> str:
    if own := _DEFAULT.match(f"{name}."):
        return own[0]
    while (shorter := _TAG.sub("", name)) != name:
        name = shorter
    word = _WORD.sub("", name)
    return word if word in names else name


def _precedence(file: Path, stem: str) -> tuple[int, int, float, str]:
    """Sort key of the files of one process: that of the failure, the last one, of steps the latest, others."""
    bare = _ENDING.sub("", file.name)
    tags = bare.removeprefix(stem)
    step = _STEP.search(bare)
    kind = 0 if ".oom" in tags or _FAILED.search(bare) else 1 if not tags else 2 if step else 3
    return kind, -int(step[1]) if step else 0, -file.stat().st_mtime, file.name
