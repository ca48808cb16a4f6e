"""The history that ``make demo`` walks: the culprits and the kinds of OOM are right, in few probes."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import pytest

from tests.forked import oomscope
from tests.integration.program import git

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "fixtures" / "demo"
HASHES = {
    "v0.2": "02ea698263433e6e26cf60889e7b64eb9de1adf2",
    "long-context": "4eb9b96c8df5f2217fe9ec77c57d19a0debd3128",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tinytrain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repo = tmp_path_factory.mktemp("demo") / "tinytrain"
    runpy.run_path(str(DEMO / "build.py"))["build"](repo)
    return repo


def bisect(repo: Path, commits: str, limit: str, *options: str) -> str:
    arguments = ["--repo", repo, "--harness", DEMO / "harness.py", "--limit", limit]
    done = oomscope("bisect", commits, *arguments, "--backend", "virtual", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_hashes_are_the_same_everywhere(tinytrain: Path) -> None:
    assert {name: git(tinytrain, "rev-parse", name) for name in HASHES} == HASHES


@pytest.mark.parametrize(
    ("commits", "limit", "iterations", "subject", "kind", "untestable"),
    [
        (
            "v0.1..v0.2",
            "6.75GiB",
            "4",  # as in the demo: the buckets of all lengths
            "Let the longest bucket hold 1600 tokens",
            "fragmentation",
            ["Ask the batch for its length"],
        ),
        ("v0.1.1..long-context", "10GiB", "2", "Write attention out, to look at its weights", "capacity", []),
    ],
    ids=["fragmentation", "capacity"],
)
def test_culprit_and_kind(tinytrain: Path, commits, limit, iterations, subject, kind, untestable) -> None:
    words = (commits, limit, "--iterations", iterations)
    document = json.loads(bisect(tinytrain, *words, "--json"))
    assert document["outcome"] == "culprit"
    assert document["culprit"]["subject"] == subject
    assert document["verdict"]["kind"] == kind
    cured = "expandable_segments:True" in document["verdict"]["cured_by"]
    assert cured == (kind == "fragmentation")
    skipped = [probe["subject"] for probe in document["probes"] if probe["answer"] == "untestable"]
    assert skipped == untestable
    candidates = int(git(tinytrain, "rev-list", "--count", commits))
    answered = len(document["probes"]) - len(skipped)
    assert answered <= math.ceil(math.log2(candidates)) + 2
    if kind == "fragmentation":
        printed = bisect(tinytrain, *words)  # from the cache
        assert_in_order(printed, (ROOT / "README.md").read_text().partition("from `make demo`")[2].split("```")[1])


def assert_in_order(printed: str, quoted: str) -> None:
    """Check that what the README shows is what is printed: line breaks, times and the lines at ``...`` apart."""
    printed, quoted = (" ".join(re.sub(r"\((?:\d+\.\d s|cached)\)", "", text).split()) for text in (printed, quoted))
    at = 0
    for piece in quoted.split("..."):
        at = printed.find(piece.strip(), at)
        assert at >= 0, piece
        at += len(piece.strip())
