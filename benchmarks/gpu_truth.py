"""Hold the virtual card against a real one, and write down what both say.

    python benchmarks/gpu_truth.py [OUT] [--part PART]... [--card cuda|virtual] [--at-once 4] [--minutes 8]
        [--only WORD]

Parts, in this order: ``capture`` (tests/gpu/capture.py), ``bisect`` (the demo's history, which has a commit that
fragments and one that needs more), ``recompute`` and ``offload`` (what they cost in time, one run after the other).
What many configurations and programs need is measured by tests/gpu/measure.py. ``--card virtual`` rehearses without a
GPU: the virtual card stands on both sides. Each part writes ``OUT/PART.json.gz``, again while it goes on, and
prints its table.

Exit codes: 0 where all that was asked for was measured and is within the targets, and where there is no GPU, for
then there is nothing to measure; 1 where something failed or was left out for want of time; 2 for a wrong command
line; 3 where all was measured, but the searches name other culprits or verdicts. What failed or deviates is named.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES = 4
"""Of snapshots of a part: one part leaves archives in a call, and at most eight files come back from it."""
FAILED, DEVIATES = 1, 3
"""Exit codes; the first where both are."""
sys.path.insert(0, str(ROOT))

from benchmarks.truth import history, timings  # noqa: E402
from benchmarks.truth.matrix import Case  # noqa: E402
from benchmarks.truth.measuring import Bench  # noqa: E402
from oomscope.probe.machine.backends import has_card  # noqa: E402
from oomscope.virtual.installed_torch import find_torch  # noqa: E402
from tests.gpu.captures.parcel import write  # noqa: E402

Keep = Callable[[dict[str, Any]], None]
PARTS: dict[str, Callable[[Bench, str, Keep], dict[str, Any]]] = {
    "bisect": lambda bench, _only, _keep: history.run(bench),
    "recompute": lambda bench, only, keep: timings.run(bench, named(timings.RECOMPUTE, only), keep),
    "offload": lambda bench, only, keep: timings.run(bench, named(timings.OFFLOAD, only), keep),
}


def named(cases: Sequence[Case], only: str) -> list[Case]:
    """Return the cases whose names hold ``only``."""
    return [case for case in cases if only in case.name]


def main() -> int:
    """Measure and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("gpu-truth"))
    parser.add_argument("--part", action="append", choices=("capture", *PARTS))
    parser.add_argument("--card", choices=("cuda", "virtual"), default="cuda")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", default="", help="measure the configurations whose names hold this")
    given = parser.parse_args()
    if given.only and not any(named(cases, given.only) for cases in (timings.RECOMPUTE, timings.OFFLOAD)):
        parser.error(f"no configuration has a name that holds {given.only!r}")
    if given.card == "cuda" and not has_card():
        print("there is no GPU: nothing was measured (--card virtual rehearses)")
        return 0
    until = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    has_failed, deviates = False, False
    for part in given.part or ("capture", *PARTS):
        started = time.monotonic()
        if part == "capture":
            has_failed |= capture(given.out, (until - started) / 60) != 0
            continue
        try:
            document = measure(part, given, until)
        except Exception:  # noqa: BLE001 # the parts behind it are worth having
            print(f"== {part} failed", traceback.format_exc(), sep="\n", flush=True)
            has_failed = True
            continue
        print(f"== {part}, {time.monotonic() - started:.0f} s", document["table"], sep="\n", flush=True)
        for line in document.get("deviations", ()):
            print(f"deviates: {line}", flush=True)
        has_failed |= "?" in document["table"] or bool(document["failed"])
        deviates |= bool(document.get("deviations"))
    return FAILED if has_failed else DEVIATES if deviates else 0


def measure(part: str, given: argparse.Namespace, until: float) -> dict[str, Any]:
    """Measure one part, write its document (again and again while it goes on), and return it."""
    with tempfile.TemporaryDirectory(prefix="truth-", ignore_cleanup_errors=True) as folder:
        bench = Bench(card=given.card, folder=Path(folder), at_once=given.at_once, until=until)

        def keep(document: dict[str, Any], *, is_whole: bool = False) -> None:
            torch = find_torch()
            facts = {"torch": torch and torch.version, "card": given.card, "is_whole": is_whole}
            not_packed = write(given.out, part, {**facts, **document}, Path(folder), most=ARCHIVES)
            for name in not_packed if is_whole else ():
                print(f"no room for {name}", flush=True)

        document = PARTS[part](bench, given.only, keep)
        keep(document, is_whole=True)
    return document


def capture(out: Path, minutes: float) -> int:
    """Run the captures, which need nothing but torch, in a process of their own."""
    command = [sys.executable, ROOT / "tests" / "gpu" / "capture.py", out, "--minutes", str(minutes)]
    try:
        return subprocess.run(command, check=False, timeout=60 * minutes + 60).returncode
    except subprocess.TimeoutExpired:
        print("the captures did not end in time", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
