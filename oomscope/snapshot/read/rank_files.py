"""One snapshot file a rank, in a folder: which file is which rank.

What recordings say of their ranks counts, as long as no two say the same; else the number after "rank" in the files'
names; else the number in which the names differ. A file that cannot be read costs its rank, not the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oomscope.errors import SnapshotError
from oomscope.snapshot.trace import Snapshot

SUFFIXES: Final = (".pickle", ".pkl", ".json")
COMPRESSED: Final = (".gz", ".zst")
_AFTER_RANK: Final = re.compile(r"rank[^0-9a-z]?(\d+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A snapshot file that could not be read."""

    file: str
    reason: str

    @classmethod
    def because(cls, error: SnapshotError, file: Path) -> Unread:
        """Return the file that raised ``error``."""
        return cls(file=str(file), reason=error.message)


def snapshot_files(directory: Path) -> list[Path]:
    """Return the snapshot files of a folder, by name.

    Raises:
        SnapshotError: it holds none, or cannot be read.
    """
    try:
        entries = sorted(path for path in directory.iterdir() if path.is_file())
    except OSError as error:
        raise SnapshotError(f"cannot read: {error.strerror}", where=str(directory), remedy="name a folder") from error
    found = [path for path in entries if _is_snapshot(path.name)]
    if not found:
        endings = ", ".join(SUFFIXES)
        raise SnapshotError("no snapshot files in it", where=str(directory), remedy=f"name files with one of {endings}")
    return found


def _is_snapshot(name: str) -> bool:
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return name.endswith(SUFFIXES)


def told_rank(snapshot: Snapshot) -> int:
    """Return the rank that a recording says it is of; -1 where it says none."""
    return snapshot.provenance.rank if snapshot.provenance else -1


def ranks_of(*folders: Mapping[Path, int]) -> tuple[dict[Path, int], ...]:
    """Return for each folder the rank that each of its files stands for; no two files of one have the same.

    One rule holds for folders that are compared: where two recordings of either say the same, names count in both.

    Args:
        folders: each file of a folder, with the rank that its recording says (:func:`told_rank`); -1 where it says
            none, or was not read.
    """
    by_name = [dict(zip(told, rank_numbers([file.name for file in told]), strict=True)) for told in folders]
    ranks = [
        {file: rank if rank >= 0 else named[file] for file, rank in told.items()}
        for told, named in zip(folders, by_name, strict=True)
    ]
    are_distinct = all(len(set(each.values())) == len(each) for each in ranks)
    return tuple(ranks if are_distinct else by_name)


def rank_numbers(names: Sequence[str]) -> list[int]:
    """Return the rank that each of some file names stands for; their order where the names do not tell."""
    for numbers in (_after_rank(names), _differing(names)):
        if numbers and len(set(numbers)) == len(names):
            return numbers
    return list(range(len(names)))


def _after_rank(names: Sequence[str]) -> list[int]:
    matches = [_AFTER_RANK.search(name) for name in names]
    return [int(match[1]) for match in matches if match] if all(matches) else []


def _differing(names: Sequence[str]) -> list[int]:
    """Return the numbers at the last place at which no two names have the same one."""
    rows = [[int(number) for number in _NUMBER.findall(name)] for name in names]
    if len({len(row) for row in rows}) != 1:
        return []
    columns = [list(column) for column in zip(*rows, strict=True) if len(set(column)) == len(names)]
    return columns[-1] if columns else []
