"""Measures configurations of the bundled transformer and training programs on the card that is there, or a virtual one.

    python tests/gpu/measure.py OUT [--part PART]... [--minutes 8] [--at-once 5] [--only WORD]
    python tests/gpu/measure.py --compare REAL VIRTUAL

Parts: ``accuracy`` (the configurations of benchmarks/truth/matrix.py), ``limits`` (each of them under limits around
what it reserved; needs ``accuracy`` in the same call) and ``programs`` (tests/gpu/programs.py, some of them also with
expandable segments). OUT gets ``measured.json.gz``. ``--compare`` prints a line for each difference between two such
files; its exit status is 1 where there is one. Ten configurations at once fill a card of 80 GiB: five leave room.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.captures.which_card import CARD  # noqa: E402 - before torch

# isort: split
from benchmarks.truth.matrix import CASES, Case  # noqa: E402
from benchmarks.truth.measuring import Bench  # noqa: E402
from oomscope.probe.result import ProbeResult  # noqa: E402
from oomscope.snapshot.read.load import load_snapshot  # noqa: E402
from oomscope.snapshot.trace import Action  # noqa: E402
from tests.gpu.programs import PROGRAMS  # noqa: E402

Row = dict[str, Any]
EXPANDABLE = ("gpt-bf16", "resnet50", "varying", "compiled", "accumulate-8", "lstm", "llama")
LIMITS = (0.97, 1.03)
"""Of what a configuration reserved without a limit."""
PEAKS = ("requested_bytes", "allocated_bytes", "reserved_bytes")


def row_of(name: str, result: ProbeResult, snapshot: Path) -> Row:
    """Return what is kept of a probe: peaks, segments, place of the peak, and a digest of its requests in order."""
    peak, failure = result.peak, result.failure
    kept: Row = {"name": name, "outcome": result.outcome, "segments": result.segments}
    kept |= {"failure": failure.message} if failure else {}
    kept |= {metric: getattr(peak, metric) for metric in PEAKS} if peak else {}
    kept |= {"limit_bytes": result.limit_bytes, "phase": peak.phase if peak else None}
    return kept | (requests_of(snapshot) if snapshot.exists() else {})


def requests_of(snapshot: Path) -> Row:
    """Return how many requests and frees a recording has, and a digest of the requests' sizes in order.

    The order of frees varies from run to run on one card: Python's sets and collector decide it.
    """
    trace = max(load_snapshot(snapshot).traces, key=len)
    sizes = trace.size[trace.action == Action.ALLOC].tolist()
    frees = int((trace.action == Action.FREE_COMPLETED).sum())
    return {
        "requests": len(sizes),
        "frees": frees,
        "digest": hashlib.sha256(" ".join(map(str, sizes)).encode()).hexdigest()[:16],
    }


def configuration(bench: Bench, case: Case) -> Row:
    """Measure a configuration."""
    snapshot = bench.folder / f"{case.name.replace(' ', '-')}.pickle.gz"
    return row_of(case.name, bench.measured(case.config(), bench.card, snapshot=snapshot), snapshot)


def under_limit(bench: Bench, case: Case, row: Row, share: float) -> Row:
    """Measure a configuration whose allocator may reserve ``share`` of what it reserved."""
    limit = int(share * row["reserved_bytes"])
    fraction = f"per_process_memory_fraction:{(limit + 0.5) / row['limit_bytes']!r}"
    conf = ",".join(filter(None, (case.config().allocator.conf, fraction)))
    result = bench.measured(case.config([f"allocator.conf={conf}"]), bench.card, demand=False)
    verdict = result.verdict.kind if result.verdict else None
    return {"name": f"{case.name} under {share}", "outcome": result.outcome, "verdict": verdict}


def program(bench: Bench, name: str) -> Row:
    """Probe a program as it is."""
    snapshot = bench.folder / f"program-{name.replace(' ', '-')}.pickle.gz"
    word, _, setting = name.partition(" ")
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths}
    environment |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if setting else {}
    options = f"--backend {bench.card} --json --quiet --no-confirm --snapshot {snapshot}"
    options += " --gpu h100-80gb" if bench.card == "virtual" else ""
    command = [sys.executable, "-m", "oomscope", "probe", *options.split(), "--", sys.executable]
    command += [str(ROOT / "tests/gpu/programs.py"), word]
    left = max(5.0, bench.until + 30 - time.monotonic())
    done = subprocess.run(
        command, cwd=bench.folder, env=environment, capture_output=True, text=True, check=False, timeout=left
    )
    if not done.stdout:
        raise RuntimeError(done.stderr.strip())
    return row_of(name, ProbeResult.from_json(json.loads(done.stdout)), snapshot)


def measure(bench: Bench, parts: Sequence[str], only: str) -> dict[str, Any]:
    """Return the rows of each part; ``only`` chooses among their names."""
    cases = {case.name: case for case in CASES if only in case.name}
    found: dict[str, Any] = {"card": bench.card}
    if "accuracy" in parts:
        found["accuracy"] = bench.each(cases.values(), lambda case: configuration(bench, case), name=lambda c: c.name)
    if "limits" in parts:
        fitting = [row for row in found.get("accuracy", ()) if row["outcome"] == "fits"]
        wanted = [(row, share) for row in fitting for share in LIMITS]
        found["limits"] = bench.each(wanted, lambda item: under_limit(bench, cases[item[0]["name"]], *item))
    if "programs" in parts:
        names = [name for name in (*PROGRAMS, *(f"{each} expandable" for each in EXPANDABLE)) if only in name]
        found["programs"] = bench.each(names, lambda name: program(bench, name))
    return found | {"failed": bench.failed}


def differences(real: Row, virtual: Row) -> list[str]:
    """Return in what two rows of one name differ."""
    told = []
    for metric in PEAKS:
        if real.get(metric) != virtual.get(metric):
            ours, theirs = virtual.get(metric) or 0, real.get(metric) or 0
            told.append(f"{metric} {ours:,} for {theirs:,} ({100 * (ours / theirs - 1):+.2f} %)" if theirs else metric)
    told += [
        f"{name} {virtual.get(name)} for {real.get(name)}"
        for name in ("outcome", "verdict", "phase")
        if real.get(name) != virtual.get(name)
    ]
    return told + (["requests"] if real.get("digest") != virtual.get("digest") else [])


def compare(paths: Sequence[Path]) -> int:
    """Print the differences of two files and return the exit status."""
    real, virtual = (json.loads(gzip.decompress(path.read_bytes())) for path in paths)
    wrong = 0
    for part in ("accuracy", "limits", "programs"):
        mine = {row["name"]: row for row in virtual.get(part, ())}
        shared = [row for row in real.get(part, ()) if row["name"] in mine]
        told = {row["name"]: found for row in shared if (found := differences(row, mine[row["name"]]))}
        for name, found in told.items():
            print(f"{name}: {'; '.join(found)}")
        missing = [row["name"] for row in real.get(part, ()) if row["name"] not in mine]
        if missing:
            print(f"not measured: {', '.join(missing)}")
        print(f"{part}: {len(shared) - len(told)} of {len(shared)} identical")
        wrong += len(told) + len(missing)
    return 1 if wrong else 0


def main() -> int:
    """Measure or compare, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=Path("measured"))
    parser.add_argument("--part", action="append", choices=("accuracy", "limits", "programs"))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("REAL", "VIRTUAL"))
    given = parser.parse_args()
    if given.compare:
        return compare(given.compare)
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + 60 * given.minutes
        bench = Bench(card=CARD, folder=Path(folder), at_once=given.at_once, until=until)
        found = measure(bench, given.part or ("accuracy", "limits", "programs"), given.only)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "measured.json.gz").write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
    rows = [row for part in ("accuracy", "programs") for row in found.get(part, ())]
    wrong = [row for row in rows if row["outcome"] != "fits"]
    for row in wrong:
        print(f"{row['name']}: {row['outcome']}: {row.get('failure', '')}")
    return 1 if bench.failed or wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
