"""``oomscope demo``: what it prints and leaves, and the culprits of the history that it walks, in few probes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from oomscope.cli.demo import WALK
from oomscope.errors import ExitCode
from tests.forked import oomscope
from tests.integration.program import git

ROOT = Path(__file__).resolve().parents[2]
HASH = "f8b82832a08802739c7b02edd77b75e7ba6c6f08"
"""Of the tag v0.2."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the demo, which was made and not walked."""
    folder = tmp_path_factory.mktemp("demo") / "place"
    done = oomscope("demo", folder, "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    document = json.loads(done.stdout)
    assert document["folder"] == str(folder)
    assert [step["command"] for step in document["steps"]] == [step.command for step in WALK]
    return folder


def test_the_hashes_are_the_same_everywhere(place: Path) -> None:
    assert git(place / "tinytrain", "rev-parse", "v0.2") == HASH


def test_what_is_there_is_replaced_only_by_force(place: Path, tmp_path: Path) -> None:
    done = oomscope("demo", place, "--json")
    assert done.returncode == ExitCode.USAGE
    assert f"{place}/tinytrain: exists; choose another folder or give --force" in done.stderr
    assert git(place / "tinytrain", "status", "--porcelain") == ""
    (tmp_path / "harness.py").write_text("of an earlier demo")
    (tmp_path / "notes.txt").write_text("the user's")
    assert oomscope("demo", tmp_path, "--json", "--force").returncode == ExitCode.OK
    assert "def setup" in (tmp_path / "harness.py").read_text()
    assert (tmp_path / "notes.txt").read_text() == "the user's"


def test_the_steps_of_the_demo(place: Path) -> None:
    done = oomscope("demo", place, "--force")
    assert done.returncode == ExitCode.OK, done.stderr
    commands = [line.removeprefix("$ ") for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert commands == [step.command for step in WALK]
    assert_in_order(done.stdout, (ROOT / "README.md").read_text().partition("from `oomscope demo`")[2].split("```")[1])
    assert all((place / name).is_file() for name in ("v0.2.pickle", "explain.html", "bisect.html"))
    target = ("--repo", place / "tinytrain", "--harness", place / "harness.py", "--backend", "virtual")
    kept = ("--limit", "6.75GiB", "--iterations", "4", "--state", place / "state")
    done = oomscope("bisect", "v0.1..v0.2", *target, *kept, "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    document = json.loads(done.stdout)
    assert document["outcome"] == "culprit"
    assert document["culprit"]["subject"] == "Let the longest bucket hold 1600 tokens"
    assert document["verdict"]["kind"] == "fragmentation"
    assert "expandable_segments:True" in document["verdict"]["cured_by"]
    skipped = [probe["subject"] for probe in document["probes"] if probe["answer"] == "untestable"]
    assert skipped == ["Ask the batch for its length"]
    candidates = int(git(place / "tinytrain", "rev-list", "--count", "v0.1..v0.2"))
    assert len(document["probes"]) - len(skipped) <= math.ceil(math.log2(candidates)) + 2


def assert_in_order(printed: str, quoted: str) -> None:
    """Check that what the README shows is what is printed: line breaks, times and the lines at ``...`` apart."""
    time = re.compile(r"\([\d.]+ s(?:, begun ahead)?\)")
    printed, quoted = (" ".join(time.sub("", text).split()) for text in (printed, quoted))
    at = 0
    for piece in quoted.split("..."):
        at = printed.find(piece.strip(), at)
        assert at >= 0, piece
        at += len(piece.strip())
