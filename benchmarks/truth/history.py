"""The demo's history bisected on the card and on the virtual one: culprits and verdicts of both.

The card's limit leaves as much to its allocator as the virtual card's limit does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.truth.matrix import CASES
from benchmarks.truth.measuring import GRACE_S, Backend, Bench, table
from oomscope.demo import history
from oomscope.errors import GitError
from oomscope.probe.job import ProbeJob
from oomscope.probe.result import ProbeResult
from oomscope.units import GiB

ROOT = Path(__file__).resolve().parents[2]
RANGE = "v0.1..v0.2"
LIMIT = 7 * GiB
"""Bytes of a card of which the virtual one holds its default outside the allocator."""
_NONE = "none"
_COMMAND = (sys.executable, "-c", "from oomscope.cli.main import main; main()")


def run(bench: Bench) -> dict[str, Any]:
    """Bisect the demo's history on both cards."""
    repo = bench.folder / "tinytrain"
    try:
        history.build(repo)
    except GitError as error:
        raise RuntimeError(f"the demo's history cannot be made: {error}") from None
    more = more_outside(bench.measured(CASES[0].config(), "cuda")) if bench.card == "cuda" else 0

    def search(backend: Backend) -> dict[str, Any]:
        return _search(bench, repo, LIMIT if backend == "virtual" else LIMIT + more, backend)

    cards: tuple[Backend, ...] = (bench.card, "virtual")
    rows = bench.each(cards, search, at_once=2, name=lambda backend: f"{RANGE} on {backend}")
    told = {"failed": bench.failed, "deviations": deviations(rows), "table": _table(rows)}
    return {"searches": rows, "more_outside": more, **told}


def deviations(rows: list[dict[str, Any]]) -> list[str]:
    """Return the ranges in which the cards name other culprits or verdicts, or none."""
    answers: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        answers.setdefault(row["range"], []).append(_found(row.get("answer", {})))
    return [
        f"{range_}: {' against '.join(f'{culprit}, {verdict}' for culprit, verdict in found)}"
        for range_, found in answers.items()
        if len(set(found)) > 1 or found[0][0] == _NONE
    ]


def _found(answer: dict[str, Any]) -> tuple[str, str]:
    """Return the culprit and the verdict."""
    verdict = ((answer.get("first_bad") or {}).get("result") or {}).get("verdict") or {}
    return (answer.get("culprit") or {}).get("commit", _NONE)[:10], verdict.get("kind", "no verdict")


def more_outside(card: ProbeResult) -> int:
    """Return by how much more the card has outside the allocator than the virtual one, in bytes."""
    if card.non_torch_bytes is None:
        raise ValueError(f"the card told nothing of itself: {card.failure.message if card.failure else card.outcome}")
    return card.non_torch_bytes + (card.other_process_bytes or 0) - ProbeJob.non_torch_bytes


def _search(bench: Bench, repo: Path, limit: int, backend: Backend) -> dict[str, Any]:
    state = tempfile.mkdtemp(prefix="state-", dir=bench.folder)
    words = ["bisect", RANGE, "--harness", history.HARNESS, "--repo", repo, "--limit", str(limit)]
    words += ["--iterations", "4"]
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
    row = {"range": RANGE, "limit": limit, "backend": backend, "exit_code": done.returncode, "wall_s": seconds}
    return {**row, "answer": json.loads(done.stdout)} if done.stdout else {**row, "said": done.stderr}


def _table(rows: list[dict[str, Any]]) -> str:
    def row(each: dict[str, Any]) -> list[object]:
        answer = each.get("answer", {})
        culprit, verdict = _found(answer)
        said = verdict if answer else each.get("said", "").strip()
        return [each["range"], each["backend"], culprit, said, len(answer.get("probes", ())), f"{each['wall_s']:.0f} s"]

    return table(("range", "backend", "culprit", "verdict", "probes", "wall"), map(row, rows))
