"""How a part's findings leave the machine: one JSON document, and its snapshots in few archives of a bounded size."""

from __future__ import annotations

import contextlib
import gzip
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LARGEST = 15 << 20
"""Bytes of a file; snapshots that hold more together go into several archives, and one that alone does goes nowhere."""
MOST = 2
"""Archives of a part unless told, so that no call leaves more files than come back."""


def write(out: Path, part: str, document: dict[str, Any], folder: Path, *, most: int = MOST) -> list[str]:
    """Write ``PART.json.gz`` and, where ``folder`` holds snapshots, ``PART.tar`` (``PART-2.tar``, ...) into ``out``.

    Each appears whole or not at all, in the place of an earlier one. A snapshot that goes meanwhile is left out.

    Returns:
        What did not fit, by name, which the document tells under ``not_packed``.
    """
    packed, left_out = volumes(sorted(folder.glob("*.pickle.gz")), most)
    told = {"schema_version": 1, "part": part, **document, **({"not_packed": left_out} if left_out else {})}
    with replacing(out / f"{part}.json.gz") as partial, gzip.open(partial, "wt", encoding="utf-8") as file:
        json.dump(told, file, separators=(",", ":"), default=str)
    if (size := (out / f"{part}.json.gz").stat().st_size) > LARGEST:
        left_out.append(f"{part}.json.gz may not come back: {size} bytes")
    for number, snapshots in enumerate(packed, 1):
        with (
            replacing(out / f"{part}{'' if number == 1 else f'-{number}'}.tar") as partial,
            tarfile.open(partial, "w") as archive,
        ):
            for snapshot in snapshots:
                with contextlib.suppress(FileNotFoundError):
                    archive.add(snapshot, arcname=snapshot.name)
    return left_out


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to, which takes its place at the end, or goes where something is raised."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def volumes(files: Sequence[Path], most: int) -> tuple[list[list[Path]], list[str]]:
    """Return the files of each archive, at most ``most`` of them, each where it fits first; and what fits in none."""
    packed, rooms, left_out = list[list[Path]](), list[int](), list[str]()
    for file in files:
        try:
            size = file.stat().st_size + 1024
        except FileNotFoundError:
            continue
        if size <= LARGEST and all(size > room for room in rooms) and len(packed) < most:
            packed.append([])
            rooms.append(LARGEST)
        place = next((number for number, room in enumerate(rooms) if size <= room), None)
        if place is None:
            left_out.append(f"{file.name}: {size - 1024} bytes")
        else:
            packed[place].append(file)
            rooms[place] -= size
    return packed, left_out
