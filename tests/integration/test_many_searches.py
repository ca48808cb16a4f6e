"""Sixteen searches of one repository at once, with one place for results: each is right, and none disturbs another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from oomscope.bisect.places import Places
from oomscope.probe.result import ProbeResult
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

SEARCHES = 16
LENGTH = 3
"""Commits of each range, of which each shares all but the first with the one before: both probe them at once."""


def test_sixteen_searches_at_once(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    # Every second commit adds a thousand bytes, so a range of three has one such commit.
    sizes = [1 + 1000 * (number // 2) for number in range(SEARCHES + LENGTH)]
    hashes = repo.import_line("size.txt", [f"peak {size} of {number}\n" for number, size in enumerate(sizes)])
    before, places = fingerprint(repo.path), Places(tmp_path / "state")

    running = [start(repo, places, hashes, first, sizes) for first in range(SEARCHES)]
    said = [process.communicate(timeout=280) for process in running]

    for first, (process, (out, err)) in enumerate(zip(running, said, strict=True)):
        assert process.returncode == 0, err
        assert json.loads(out)["culprit"]["commit"] == hashes[culprit(first, sizes)], first
    assert fingerprint(repo.path) == before
    assert not list(places.checkouts.iterdir())
    for entry in places.results.rglob("*"):
        if entry.is_file():
            kept = json.loads(entry.read_text())
            assert ProbeResult.from_json(kept["result"]).peak is not None, entry
    assert len(list(places.results.rglob("*.json"))) <= len(hashes), "one entry a commit, and no half of one"
    assert not [entry for entry in places.results.rglob("*") if entry.is_file() and entry.suffix != ".json"]


def start(repo: Repo, places: Places, hashes: list[str], first: int, sizes: list[int]) -> subprocess.Popen[str]:
    """Start the search of the range that begins with commit ``first``; what its first commit wants is still good."""
    words = [str(OOMSCOPE), "bisect", f"{hashes[first]}..{hashes[first + LENGTH - 1]}", "--repo", str(repo.path)]
    words += ["--command", "cat size.txt", "--metric-regex", r"peak (\d+)", "--bad", f"live>{sizes[first]}"]
    words += ["--state", str(places.root), "--backend", "sim", "--json", "--quiet"]
    return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def culprit(first: int, sizes: list[int]) -> int:
    return next(number for number in range(first, len(sizes)) if sizes[number] > sizes[first])
