"""Sixteen searches of one repository at once, with one place for results: each is right, and none disturbs another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from oomscope.bisect.run.places import Places
from oomscope.probe.result import ProbeResult
from tests.conftest import ROOT
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

SEARCHES = 16
INSTALLED = 2
"""How many of them are the installed program with real probes; the others are forks of one that has imported all."""
LENGTH = 3
"""Commits of each range, of which each shares all but the first with the one before: both probe them at once."""


def test_sixteen_searches_at_once(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    # Every second commit adds a thousand bytes, so a range of three has one such commit.
    sizes = [1 + 1000 * (number // 2) for number in range(SEARCHES + LENGTH)]
    hashes = repo.import_line("size.txt", [f"peak {size} of {number}\n" for number, size in enumerate(sizes)])
    before, places = fingerprint(repo.path), Places(tmp_path / "state")
    searches = [words(repo, places, hashes, first, sizes) for first in range(SEARCHES)]

    running = [start([str(OOMSCOPE), *each]) for each in searches[:INSTALLED]]
    forked = start([sys.executable, "-m", "tests.integration.many_searches", str(tmp_path)])
    out, err = forked.communicate(json.dumps(searches[INSTALLED:]), timeout=280)
    said = [process.communicate(timeout=280)[0] for process in running]

    assert forked.returncode == 0, err
    assert [process.returncode for process in running] + json.loads(out) == [0] * SEARCHES
    said += [(tmp_path / f"{number}.out").read_text() for number in range(SEARCHES - INSTALLED)]
    for first, document in enumerate(said):
        assert json.loads(document)["culprit"]["commit"] == hashes[culprit(first, sizes)], first
    assert sorted(json.loads(document)["search"] for document in said) == list(range(1, SEARCHES + 1))
    assert fingerprint(repo.path) == before
    assert not list(places.checkouts.iterdir())
    for entry in places.results.rglob("*"):
        if entry.is_file():
            kept = json.loads(entry.read_text())
            assert ProbeResult.from_json(kept["result"]).peak is not None, entry
    assert len(list(places.results.rglob("*.json"))) <= len(hashes), "one entry a commit, and no half of one"
    assert not [entry for entry in places.results.rglob("*") if entry.is_file() and entry.suffix != ".json"]


def words(repo: Repo, places: Places, hashes: list[str], first: int, sizes: list[int]) -> list[str]:
    """Return the words of the search of the range that begins with commit ``first``; what that wants is still good."""
    ends = f"{hashes[first]}..{hashes[first + LENGTH - 1]}"
    given = ["bisect", ends, "--repo", str(repo.path), "--state", str(places.root), "--backend", "virtual", "--json"]
    given += ["--command", "cat size.txt", "--metric-regex", r"peak (\d+)", "--bad", f"requested>{sizes[first]}"]
    return [*given, "--quiet"]


def start(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)


def culprit(first: int, sizes: list[int]) -> int:
    return next(number for number in range(first, len(sizes)) if sizes[number] > sizes[first])
