"""From a red night to its commit: what checkouts of commits are given, and what is said where they lack it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oomscope.bisect.results.reporter import SilentReporter
from oomscope.gate.checkouts import home_of
from oomscope.gate.culprit import SearchSettings, culprit_of
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import Culprit, MeasuredCommit
from oomscope.gate.night.status import Status
from oomscope.gate.suite.suite import load_suite
from tests.unit.bisect.repos import Repo
from tests.unit.gate.nights import case_result, night

PROGRAM = "print('peak', int(open('data/size').read()) + int(open('size').read()) + int(open('built').read()))\n"
SUITE = f"""\
cases:
  - name: tiny
    command: {sys.executable} train.py
    repo: ..
    metric_regex: 'peak (\\d+)'
"""
KEYS = """\
    link: [data]
    setup: echo 1 > built
    fixup: ['main: grown.patch']
"""
PATCH = "--- a/size\n+++ b/size\n@@ -1 +1 @@\n-200\n+300\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """Three commits, the second of which grows, beside data that git does not track."""
    repo = Repo(tmp_path / "repo")
    repo.commit("Begin", {"train.py": PROGRAM, "size": "100\n", ".gitignore": "data/\nbuilt\n", "data/size": "1000\n"})
    repo.commit("Grow", {"size": "200\n"})
    repo.commit("Go on", {"readme": ""})
    (repo.path / "ci").mkdir()
    (repo.path / "ci" / "grown.patch").write_text(PATCH)
    return repo


def searched(repo: Repo, suite: str, state: Path) -> Culprit:
    """Return what the search finds for a night that measured the last commit."""
    file = repo.path / "ci" / "memory.yaml"
    file.write_text(suite)
    (case,) = load_suite(file).cases
    rows = (MetricRow(name="peak_requested", status=Status.WORSE, expected=1101, measured=1301, warn=0, fail=0),)
    worse = replace(case_result(1, Status.WORSE), rows=rows, standing=MeasuredCommit(commit=repo.head, subject="Go on"))
    red = replace(night(1, worse), suite=str(file), home=home_of(file))
    ledger = cast("Any", SimpleNamespace(green_commits=lambda *_: [repo.git("rev-parse", "main~2")]))
    return culprit_of(
        worse, case, red, SearchSettings(ledger=ledger, reporter=lambda: nullcontext(SilentReporter()), state=state)
    )


def test_commits_are_linked_repaired_and_built_as_the_suite_says(repo: Repo, tmp_path: Path) -> None:
    found = searched(repo, SUITE + KEYS, tmp_path / "state")
    assert (found.outcome, found.commit) == ("culprit", repo.git("rev-parse", "main~1")), found.message
    *make_ready, _probe = found.commands
    for _ in range(2):  # of two cases with one culprit
        subprocess.run("; ".join(make_ready), shell=True, check=True, capture_output=True, cwd=repo.path)
    place = repo.path.parent / f"oomscope-{found.commit[:10]}"
    assert (place / "data" / "size").read_text() == "1000\n"
    assert (place / "built").read_text() == "1\n"
    assert not (repo.path / "data" / "data").exists()


def test_a_file_that_git_does_not_track_needs_a_key_of_the_suite(repo: Repo, tmp_path: Path) -> None:
    found = searched(repo, SUITE, tmp_path / "state")
    assert found.outcome == "ends_invalid", found.message
    where = f"{repo.path / 'ci' / 'memory.yaml'}:2"
    assert found.message.endswith(f"git does not track data/size: add link: [data] to the case in {where}")


def test_a_missing_patch_is_named(repo: Repo, tmp_path: Path) -> None:
    found = searched(repo, SUITE + "    fixup: ['main: other.patch']\n", tmp_path / "state")
    assert found.outcome == "not searched"
    assert "other.patch: no such patch file" in found.message
