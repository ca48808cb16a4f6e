"""The allocator's history in a form that is small enough to keep."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

Columns = dict[str, list[Any]]
"""``action``, ``addr``, ``size`` and ``stream`` of each event, in order, and ``device_free`` of failures."""

ROOT = Path(__file__).resolve().parents[3]
_FAILED = "oom"
SAID = "oomscope"
"""The key under which a snapshot tells of itself; readers that do not know it pass over it."""


def columns_of(trace: list[dict[str, Any]]) -> Columns:
    """Return the events of ``trace`` without their stacks and times."""
    columns: Columns = {"action": [], "addr": [], "size": [], "stream": []}
    for event in trace:
        columns["action"].append(event["action"])
        columns["addr"].append(event.get("addr", event.get("device_free") if event["action"] == _FAILED else None))
        columns["size"].append(event["size"])
        columns["stream"].append(event["stream"])
    return columns


def start(max_entries: int = 400_000) -> None:
    """Record every event of this process from now on, with Python stacks."""
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=max_entries)


def save(path: Path, snapshot: dict[str, Any] | None = None) -> None:
    """Write the snapshot (this process's own unless given) with the paths of this machine cut off its frames."""
    snapshot = torch.cuda.memory._snapshot() if snapshot is None else snapshot  # type: ignore[no-untyped-call]
    trim(snapshot)
    snapshot[SAID] = said()
    partial = path.with_suffix(".partial")
    with gzip.open(partial, "wb", compresslevel=9) as file:
        pickle.dump(snapshot, file, protocol=4)
    partial.rename(path)


def short(conf: str) -> str:
    """Return a setting as part of a file's name."""
    return conf.partition(":")[0].replace("_", "-") or "default"


def said() -> dict[str, Any]:
    """Return version and card, which no snapshot of torch's own tells; without the card where it cannot be asked."""
    told: dict[str, Any] = {"reason": "asked", "torch_version": str(torch.__version__)}
    try:
        free, total = torch.cuda.mem_get_info()
        card = {"name": str(torch.cuda.get_device_properties(0).name), "total_bytes": total, "free_bytes": free}
        told["cards"] = [{"index": 0, **card, "memory_fraction": torch.cuda.get_per_process_memory_fraction()}]
    except RuntimeError as error:
        told["unknown"] = str(error)
    return told


def trim(snapshot: dict[str, Any]) -> None:
    """Name files from the top of their package, and the stacks that are equal by one list."""
    seen: dict[tuple[tuple[str, int, str], ...], list[dict[str, Any]]] = {}
    names: dict[str, str] = {}

    def shared(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
        key = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
        if key not in seen:
            seen[key] = [
                {"filename": names.setdefault(file, relative(file)), "line": line, "name": sys.intern(name)}
                for file, line, name in key
            ]
        return seen[key]

    for trace in snapshot["device_traces"]:
        for event in trace:
            if "frames" in event:
                event["frames"] = shared(event["frames"])
    for segment in snapshot["segments"]:
        for holder in (segment, *segment["blocks"]):
            if "frames" in holder:
                holder["frames"] = shared(holder["frames"])


def relative(filename: str) -> str:
    """Return ``filename`` from its package or this project on; what lies elsewhere keeps its last name."""
    for marker in ("site-packages", "dist-packages"):
        if f"{os.sep}{marker}{os.sep}" in filename:
            return filename.rpartition(f"{os.sep}{marker}{os.sep}")[2]
    path = Path(filename)
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    return path.name if path.is_absolute() else filename
