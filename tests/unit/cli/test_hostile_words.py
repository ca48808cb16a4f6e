"""Ranges that look like options, and branches with the oddest names that git allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.bisect.run.runner import Here
from oomscope.cli.main import run
from oomscope.errors import ExitCode
from tests.unit.cli.hostile import Told
from tests.unit.cli.test_bisect_journal import Searches

BRANCHES = (
    *("größe", "🔥", "a\u202eb", "refs/heads/main", "HEAD", "a.yaml", "$(touch\u00a0pwned)", "'\";|&<>", "%s%n{0}"),
    *("x" * 200, "@x", "deadbeef"),
)
"""Names that git takes for branches (git-check-ref-format(1)), some of them by plumbing alone."""
RANGES = (
    "--upload-pack=touch pwned..HEAD",
    "-x..HEAD",
    "HEAD..-x",
    "HEAD..--exec=touch pwned",
    "^HEAD..HEAD",
    "@{-1}..",
    "..@{-1}",
    "good...main",
    "....",
    "..",
    "...",
    "HEAD..HEAD",
    "HEAD~999999999..HEAD",
    "HEAD^{tree}..HEAD",
    "HEAD^{/no such words}..HEAD",
    ":/commit 1..HEAD",
    "HEAD:a.yaml..HEAD",
    "HEAD@{1970-01-01}..HEAD",
    "HEAD@{99999}..HEAD",
    "0" * 40 + "..HEAD",
    "f" * 40 + "..HEAD",
    "/dev/null..HEAD",
    "~..~",
    " .. ",
    "good\n..main",
    "good\0..main",
    "good\x1b[31m..main",
    "\udcff..main",
    "x" * 100_000 + "..main",
    "refs/heads/..main",
    "--all..main",
    "--git-dir=/tmp..main",
    "--help",
    "",
)


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    made = Searches(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("oomscope.bisect.run.prober.runner_of", lambda *_: Here(run=made.measure))
    monkeypatch.chdir(made.repo.path)
    return made


@pytest.mark.parametrize("whole", [False, True], ids=["as a range", "after --"])
def test_a_range_is_nothing_but_a_range(searches: Searches, capsys, whole: bool) -> None:
    told = Told(capsys)
    for words in RANGES:
        own = ["--config", "a.yaml", "--quiet"]
        told.by(repr(words[:60]), "bisect", *([*own, "--", words] if whole else [words, *own]))
    assert told.wrong == []
    assert set(told.codes) <= {ExitCode.OK, ExitCode.USAGE, ExitCode.INCONCLUSIVE}
    assert not list(searches.repo.path.parent.rglob("pwned"))


def test_a_branch_may_be_called_anything_that_git_allows(searches: Searches, capsys) -> None:
    told = Told(capsys)
    for name in BRANCHES:
        searches.repo.git("update-ref", f"refs/heads/{name}", "main")
    for name in BRANCHES:
        told.by(repr(name), "bisect", f"good..{name}", "--config", "a.yaml", "--quiet")
    assert told.wrong == []
    capsys.readouterr()
    assert run(["bisect", f"good..refs/heads/{BRANCHES[6]}", "--config", "a.yaml", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["culprit"]["commit"] == searches.hashes[8]
    assert not list(searches.repo.path.parent.rglob("pwned"))
