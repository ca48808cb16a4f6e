"""Captures on a real GPU what the emulator and the simulated device are held against; needs nothing but torch.

    python tests/gpu/capture.py OUT [--part PART]... [--golden FILE-OR-FOLDER] [--minutes 8] [--at-once 6]

Parts, in this order: ``machine`` (versions, context bytes), ``failures`` (an OOM of each kind, and its cure),
``training`` (two iterations of a small decoder in many ways), ``temporaries`` (what single operations and cuBLAS take)
and ``golden`` (recorded allocator traces played on the card). Each item runs in a fresh process. Under OUT lie one
archive of snapshots and one JSON document a part; what did not come to an end is named in the document, and the exit
code is 1. A part whose time is up leaves out the rest of its items, and says which.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.captures import failures, golden, machine, temporaries, training  # noqa: E402
from tests.gpu.captures.parcel import write  # noqa: E402

Spec = dict[str, Any]
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True)
class Part:
    """One kind of capture."""

    run: Callable[[Spec], dict[str, Any]]
    """Called in a fresh process for each item."""
    seconds: float
    """An item that takes longer is ended."""


PARTS = {
    "machine": Part(machine.describe, 60),
    "failures": Part(failures.run, 60),
    "training": Part(training.run, 90),
    "temporaries": Part(temporaries.run, 120),
    "golden": Part(golden.play, 60),
}


def items(part: str, traces: Sequence[Path]) -> list[Spec]:
    """Return what ``part`` captures."""
    if part == "golden":
        return [{"name": record["name"], "conf": record["conf"], "record": record} for record in records(traces)]
    if part == "machine":
        return [{"name": "machine", "conf": ""}]
    return {"failures": failures, "training": training, "temporaries": temporaries}[part].items()


def records(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of the files in ``paths``, one stream before several."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path])]
    found = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            found += [json.loads(line) for line in lines]
    for record in found:
        del record["expected"]
    yield from sorted(found, key=lambda record: any(op[0] == "r" or len(op) > 3 for op in record["ops"]))


def run_all(part: str, specs: Sequence[Spec], folder: Path, at_once: int, until: float) -> list[dict[str, Any]]:
    """Run every item in a process of its own, ``at_once`` of them side by side, and return what each gave."""
    context = multiprocessing.get_context("fork")
    waiting, running, done = list(enumerate(specs)), dict[int, tuple[Any, float]](), dict[int, dict[str, Any]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            number, spec = waiting.pop(0)
            if time.monotonic() > until:
                done[number] = {"name": spec["name"], "conf": spec["conf"], "failed": "left out: the time was up"}
                continue
            process = context.Process(target=child, args=(part, spec, folder / f"{part}-{number}.json"))
            process.start()
            running[number] = process, time.monotonic() + PARTS[part].seconds
        for number, (process, deadline) in list(running.items()):
            if process.is_alive() and time.monotonic() < deadline:
                continue
            process.kill()
            process.join()
            del running[number]
            done[number] = answer(folder / f"{part}-{number}.json", specs[number], process.exitcode)
        time.sleep(0.02)
    return [done[number] for number in sorted(done)]


def child(part: str, spec: Spec, path: Path) -> None:
    """Run one item under its allocator settings and write what it gave."""
    for name in SETTINGS:
        os.environ.pop(name, None)
    if spec["conf"]:
        os.environ[SETTINGS[0]] = spec["conf"]
    try:
        given = PARTS[part].run({**spec, "folder": str(path.parent)})
    except BaseException:  # noqa: BLE001 # whatever it is, the report names it
        given = {"name": spec["name"], "conf": spec["conf"], "failed": traceback.format_exc(limit=-4)}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(given), encoding="utf-8")
    partial.rename(path)


def answer(path: Path, spec: Spec, exit_code: int | None) -> dict[str, Any]:
    """Return what a child wrote, or that it wrote nothing."""
    if path.exists():
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return given
    return {"name": spec["name"], "conf": spec["conf"], "failed": f"ended without a word (exit code {exit_code})"}


def main(words: Sequence[str] | None = None) -> int:
    """Capture and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--golden", type=Path, action="append", default=[])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--at-once", type=int, default=6)
    given = parser.parse_args(words)
    until = time.monotonic() + 60 * given.minutes
    traces = given.golden or [ROOT / "fixtures" / "allocator-golden"]
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for part in given.part or PARTS:
        with tempfile.TemporaryDirectory(prefix="capture-") as folder:
            started = time.monotonic()
            done = run_all(part, items(part, traces), Path(folder), given.at_once, until)
            write(given.out, part, {"items": done}, Path(folder))
        wrong = [each for each in done if "failed" in each]
        failed += len(wrong)
        print(f"{part}: {len(done) - len(wrong)} of {len(done)} in {time.monotonic() - started:.0f} s", flush=True)
        for each in wrong:
            print(f"  {each['name']} {each['conf']}: {each['failed'].strip().splitlines()[-1]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
