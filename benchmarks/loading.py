"""How long a snapshot takes to load, against the unpickling alone.

    python benchmarks/loading.py                       # 1,000,000 events with 30-frame stacks
    python benchmarks/loading.py --events 100000 --json
    python benchmarks/loading.py FILE...               # snapshots of one's own

``bare`` is ``pickle.Unpickler`` with ``find_class`` refused, on the same file: nothing checked, nothing bounded, no
columns. It is timed with Python's garbage collector as it is and switched off, each in a fresh process, so that one
does not leave its memory to the other. ``load`` is :func:`oomscope.snapshot.read.load.load_snapshot` as a whole: a
process is started, bounded, reads, checks and hands back columns. Each number is the best of five, of wall time.

Frames are shared by identity, as torch writes them; each event has a list of its own, as torch writes it, or shares the
list of its stack, as oomscope does.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oomscope.snapshot.read.load import load_snapshot

REPEATS = 5
BARE = """
import gc, pickle, sys, time

class Bare(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(module)

if sys.argv[2] == "off":
    gc.disable()
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    document = Bare(file).load()
print(time.perf_counter() - start, flush=True)
import os
os._exit(0)
"""


def document(events: int, *, depth: int = 30, own_lists: bool = True, stacks: int = 5000) -> dict[str, Any]:
    """Return a snapshot's plain values: blocks that come and go, with deep stacks of shared frames.

    Args:
        events: how many; a third are ``alloc``, ``free_requested`` and ``free_completed`` each.
        depth: frames a stack.
        own_lists: each event has its own list of frames, as torch writes it.
        stacks: distinct stacks.
    """
    dice = random.Random(0)  # noqa: S311 - no secret
    frames = [
        {
            "filename": f"/usr/lib/python3/site-packages/torch/nn/modules/part_{i % 200}.py",
            "line": i,
            "name": f"f{i}",
        }
        for i in range(3000)
    ]
    known = [[dice.choice(frames) for _ in range(depth)] for _ in range(stacks)]
    trace: list[dict[str, Any]] = []
    now = 1_700_000_000_000_000
    for number in range(-(-events // 3)):
        address = 0x7F00_0000_0000 + number % 200_000 * 32768
        size = dice.choice((512, 4096, 1 << 20, 3 << 20, 777_777))
        stack = dice.choice(known)
        for action in ("alloc", "free_requested", "free_completed"):
            now += dice.randrange(1, 30)
            trace.append(
                {
                    "action": action,
                    "addr": address,
                    "size": size,
                    "stream": 0,
                    "time_us": now,
                    "compile_context": "N/A",
                    "user_metadata": "",
                    "frames": list(stack) if own_lists else stack,
                }
            )
    return {"segments": [], "device_traces": [trace[:events]], "allocator_settings": {}, "external_annotations": []}


def measure(path: Path) -> dict[str, float]:
    """Return seconds of the bare unpickling, with and without garbage collection, and of the load."""
    load_snapshot(path)  # the first one compiles modules
    rows = [(_bare(path, "on"), _bare(path, "off"), _load(path)) for _ in range(REPEATS)]
    bare, without_gc, load = (min(column) for column in zip(*rows, strict=True))
    return {"bare_s": bare, "bare_without_gc_s": without_gc, "load_s": load}


def _bare(path: Path, collector: str) -> float:
    command = [sys.executable, "-c", BARE, str(path), collector]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _load(path: Path) -> float:
    start = time.perf_counter()
    load_snapshot(path)
    return time.perf_counter() - start


def main() -> None:
    """Print a row a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=30, help="frames a stack")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    if not options.as_json:
        print(f"{'':44} {'MB':>6} {'bare':>8} {'no gc':>8} {'load':>8} {'load/bare':>10} {'load/no gc':>10}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in options.files or _written(Path(folder), options.events, options.depth):
            row = {"file": path.name, "bytes": path.stat().st_size, **measure(path)}
            rows.append(row)
            if not options.as_json:
                print(
                    f"{path.name:44} {row['bytes'] / 1e6:6.1f} {row['bare_s']:7.3f}s {row['bare_without_gc_s']:7.3f}s "
                    f"{row['load_s']:7.3f}s {row['load_s'] / row['bare_s']:10.2f} "
                    f"{row['load_s'] / row['bare_without_gc_s']:10.2f}",
                    flush=True,
                )
    if options.as_json:
        print(json.dumps(rows, indent=2))


def _written(folder: Path, events: int, depth: int) -> list[Path]:
    paths = []
    for name, own_lists in (("own lists", True), ("shared lists", False)):
        path = folder / f"{events:,} events, {depth} frames, {name}"
        with path.open("wb") as file:
            pickle.dump(document(events, depth=depth, own_lists=own_lists), file, protocol=4)
        paths.append(path)
    return paths


if __name__ == "__main__":
    main()
