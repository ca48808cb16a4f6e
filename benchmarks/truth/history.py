"""The demo's history bisected on the card and on the simulated device: culprits and verdicts of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.truth.measuring import GRACE_S, Backend, Bench, table

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "fixtures" / "demo"
SEARCHES = (("v0.1..v0.2", "7GiB"), ("v0.1.1..long-context", "10GiB"))
_COMMAND = (sys.executable, "-c", "from oomscope.cli.main import main; main()")


def run(bench: Bench) -> dict[str, Any]:
    """Bisect both ranges of the demo on both backends."""
    repo = bench.folder / "tinytrain"
    subprocess.run([sys.executable, DEMO / "build.py", repo], check=True, capture_output=True)
    wanted = [(range_, limit, backend) for range_, limit in SEARCHES for backend in (bench.card, "sim")]
    rows = bench.each(wanted, lambda each: _search(bench, repo, *each), at_once=2, name=" ".join)
    return {"searches": rows, "failed": bench.failed, "table": _table(rows)}


def _search(bench: Bench, repo: Path, range_: str, limit: str, backend: Backend) -> dict[str, Any]:
    state = bench.folder / f"state-{backend}-{limit}"
    words = ["bisect", range_, "--harness", DEMO / "harness.py", "--repo", repo, "--limit", limit, "--iterations", "4"]
    more = ["--backend", backend, "--state", state, "--fresh", "--json", "--quiet"]
    started = time.monotonic()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*_COMMAND, *words, *more],
        cwd=bench.folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=max(5.0, bench.until + GRACE_S - started),
    )
    seconds = time.monotonic() - started
    row = {"range": range_, "limit": limit, "backend": backend, "exit_code": done.returncode, "wall_s": seconds}
    return {**row, "answer": json.loads(done.stdout)} if done.stdout else {**row, "said": done.stderr}


def _table(rows: list[dict[str, Any]]) -> str:
    def row(each: dict[str, Any]) -> list[object]:
        answer = each.get("answer", {})
        culprit = (answer.get("culprit") or {}).get("commit", "none")[:10]
        verdict = ((answer.get("first_bad") or {}).get("result") or {}).get("verdict") or {}
        said = verdict.get("kind", each.get("said", "").strip())
        return [each["range"], each["backend"], culprit, said, len(answer.get("probes", ())), f"{each['wall_s']:.0f} s"]

    return table(("range", "backend", "culprit", "verdict", "probes", "wall"), map(row, rows))
