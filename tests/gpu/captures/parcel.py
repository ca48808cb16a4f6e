"""How a part's findings leave the machine: one JSON document, and its snapshots in one archive."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any


def write(out: Path, part: str, document: dict[str, Any], folder: Path) -> None:
    """Write ``PART.json.gz`` and, where ``folder`` holds snapshots, ``PART.tar`` into ``out``."""
    with gzip.open(out / f"{part}.json.gz", "wt", encoding="utf-8", compresslevel=9) as file:
        json.dump({"schema_version": 1, "part": part, **document}, file, separators=(",", ":"))
    snapshots = sorted(folder.glob("*.pickle.gz"))
    if snapshots:
        with tarfile.open(out / f"{part}.tar", "w") as archive:
            for snapshot in snapshots:
                archive.add(snapshot, arcname=snapshot.name)
