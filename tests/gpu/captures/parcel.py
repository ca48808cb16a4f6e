"""How a part's findings leave the machine: one JSON document, and its snapshots in archives of a bounded size."""

from __future__ import annotations

import contextlib
import gzip
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 15 << 20
"""Bytes of an archive; what holds more is cut into several."""


def write(out: Path, part: str, document: dict[str, Any], folder: Path) -> None:
    """Write ``PART.json.gz`` and, where ``folder`` holds snapshots, ``PART.tar`` (``PART-2.tar``, ...) into ``out``.

    Each appears whole or not at all, in the place of an earlier one. A snapshot that goes meanwhile is left out.
    """
    partial = out / f".{part}.partial"
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=9) as file:
        json.dump({"schema_version": 1, "part": part, **document}, file, separators=(",", ":"), default=str)
    partial.replace(out / f"{part}.json.gz")
    for number, snapshots in enumerate(volumes(sorted(folder.glob("*.pickle.gz"))), 1):
        with tarfile.open(partial, "w") as archive:
            for snapshot in snapshots:
                with contextlib.suppress(FileNotFoundError):
                    archive.add(snapshot, arcname=snapshot.name)
        partial.replace(out / f"{part}{'' if number == 1 else f'-{number}'}.tar")


def volumes(files: list[Path]) -> Iterator[list[Path]]:
    """Yield the files in order, no more at a time than one archive takes."""
    volume: list[Path] = []
    held = 0
    for file in files:
        try:
            size = file.stat().st_size + 1024
        except FileNotFoundError:
            continue
        if volume and held + size > LARGEST:
            yield volume
            volume, held = [], 0
        volume.append(file)
        held += size
    if volume:
        yield volume
