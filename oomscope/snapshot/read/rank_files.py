"""One snapshot file a rank, in a folder: which file is which rank, by the file names.

The number after "rank" counts; else the last number in which all names differ; else their order.
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
COMPRESSED: Final = (".gz", ".zst")


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A snapshot file that could not be read."""

    file: str
    reason: str


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


def rank_numbers(names: Sequence[str]) -> list[int]:
    """Return the rank that each of some file names stands for."""
    after_rank = [re.search(r"rank[^0-9a-z]?(\d+)", name, re.IGNORECASE) for name in names]
    rows = [[int(number) for number in re.findall(r"\d+", name)] for name in names]
    candidates = [[int(match[1]) for match in after_rank if match]]
    if len({len(row) for row in rows}) == 1:
        candidates += [list(column) for column in zip(*rows, strict=True)][::-1]
    distinct = (numbers for numbers in candidates if len(set(numbers)) == len(names))
    return next(distinct, list(range(len(names))))
