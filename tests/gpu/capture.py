"""Captures on a real GPU what the emulator and the virtual card are held against; needs nothing but torch.

    python tests/gpu/capture.py OUT [--part PART]... [--name ITEM]... [--golden FILE-OR-FOLDER] [--minutes 8]
        [--at-once 6]

Where there is no GPU the very same is captured on the virtual card, for which oomscope has to be there; the
environment variable ``OOMSCOPE_CARD`` says which card it plays.

Parts, in this order: ``machine`` (versions, bytes of a context and of NCCL), ``failures`` (an OOM of each kind, and
its cure), ``training`` (two iterations of a small decoder in many ways), ``temporaries`` (what single operations and
cuBLAS take) and ``golden`` (recorded allocator traces played on the card). Each item runs in a fresh process. Under
OUT lie one archive of snapshots and one JSON document a part, written again while the part goes on, so that whatever
ends it leaves what was done; what did not come to an end is named in the document, and the exit code is 1. A part
whose time is up leaves out the rest of its items, and says which; so does a signal that asks to end, and the exit code
is then 128 and its number.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.captures.which_card import CARD  # noqa: E402 - before torch

# isort: split
import torch  # noqa: E402

from tests.gpu.captures import failures, golden, machine, running, temporaries, training  # noqa: E402
from tests.gpu.captures.parcel import write  # noqa: E402
from tests.gpu.captures.running import Part, Spec, run_all  # noqa: E402

PARTS = {
    "machine": Part(machine.describe, 200),
    "failures": Part(failures.run, 60),
    "training": Part(training.run, 90),
    "temporaries": Part(temporaries.run, 120),
    "golden": Part(golden.play, 90),
}
ARCHIVES = {"training": 2}
"""How many a part may leave where it is not one: with the documents of all parts that is as much as comes back."""


def items(part: str, traces: Sequence[Path]) -> list[Spec]:
    """Return what ``part`` captures."""
    if part == "golden":
        return [{"name": record["name"], "conf": record["conf"], "record": record} for record in records(traces)]
    if part == "machine":
        return [{"name": "machine", "conf": ""}]
    return {"failures": failures, "training": training, "temporaries": temporaries}[part].items()


def records(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of the files in ``paths``, one stream before several, and what asks for the same once."""
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path])]
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = {name: value for name, value in json.loads(line).items() if name in golden.ASKED}
                asked = {name: value for name, value in record.items() if name != "name"}
                found.setdefault(json.dumps(asked, sort_keys=True), record)
    yield from sorted(found.values(), key=lambda record: any(op[0] == "r" or len(op) > 3 for op in record["ops"]))


def main(words: Sequence[str] | None = None) -> int:
    """Capture and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--name", action="append", help="capture only the items of this name")
    parser.add_argument("--golden", type=Path, action="append", default=[])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--at-once", type=int, default=6)
    given = parser.parse_args(words)
    until = time.monotonic() + 60 * given.minutes
    traces = given.golden or [ROOT / "fixtures" / "allocator-golden"]
    given.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    with running.heeded():
        for part in given.part or PARTS:
            try:
                specs = [spec for spec in items(part, traces) if not given.name or spec["name"] in given.name]
                if specs:
                    wrong += capture(part, given.out, specs, at_once=given.at_once, until=until)
            except Exception:  # noqa: BLE001 # the parts behind it are worth having
                wrong += 1
                print(f"{part}: {traceback.format_exc()}", flush=True)
        if running.told_to_end:
            return 128 + running.told_to_end[0]
    return 1 if wrong else 0


def capture(part: str, out: Path, specs: Sequence[Spec], *, at_once: int, until: float) -> int:
    """Capture items of one part, print how it went, and return how many of its items failed."""
    with tempfile.TemporaryDirectory(prefix="capture-", ignore_cleanup_errors=True) as name:
        folder, started = Path(name), time.monotonic()

        def keep(done: list[dict[str, Any]], *, is_whole: bool = False) -> list[str]:
            document = {"torch": torch.__version__, "card": CARD, "is_whole": is_whole, "items": done}
            return write(out, part, document, folder, most=ARCHIVES.get(part, 1))

        done = run_all(PARTS[part], specs, folder, at_once=at_once, until=until, keep=keep)
        not_packed = keep(done, is_whole=True)
    wrong = [each for each in done if "failed" in each]
    print(f"{part}: {len(done) - len(wrong)} of {len(done)} in {time.monotonic() - started:.0f} s", flush=True)
    for each in wrong:
        print(f"  {each['name']} {each['conf']}: {each['failed'].strip().splitlines()[-1]}", flush=True)
    for name in not_packed:
        print(f"  no room for {name}", flush=True)
    return len(wrong) + len(not_packed)


if __name__ == "__main__":
    code = main()
    if running.left_behind:
        print(f"processes that do not end: {running.left_behind}", flush=True)
        os._exit(code)  # the interpreter would wait for them
    sys.exit(code)
