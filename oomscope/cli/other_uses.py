"""What to do with a file that was given to the wrong command, as its name tells."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oomscope.errors import ConfigError, OomscopeError, SnapshotError

_LOGS: Final = {".log", ".out", ".err", ".txt", ".sh"}
_SNAPSHOTS: Final = {".pickle", ".pkl"}
_YAML: Final = {".yaml", ".yml"}
_UNPACKED_BY: Final = {".gz": "gunzip", ".zst": "unzstd", ".xz": "unxz", ".bz2": "bunzip2"}


def other_use(path: Path) -> str | None:
    """Return what to do with a file whose name tells that it is no configuration; None where it tells nothing."""
    if path.suffix in _LOGS:
        return f"oomscope config import {path} makes one of the arguments that a job logs or is started with"
    if _SNAPSHOTS & set(path.suffixes):
        return f"oomscope explain {path} reads memory snapshots"
    return None


def name_other_use(error: OomscopeError) -> None:
    """Let ``error`` say which command reads the file at fault, or what makes it one that can be read."""
    if isinstance(error, SnapshotError) and error.where and _YAML & set(Path(error.where).suffixes):
        error.remedy = f"oomscope probe {error.where} measures a configuration"
    elif isinstance(error, ConfigError) and error.where and error.message.startswith("not text: byte"):
        name, _, line = error.where.rpartition(":")
        path = Path(name if line.isdecimal() else error.where)
        unpack = _UNPACKED_BY.get(path.suffix)
        error.remedy = other_use(path) or (f"unpack it: {unpack} {path}" if unpack else error.remedy)
