"""The script of docs/ci that proposes a new baseline: what a night measured becomes a branch and a pull request."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.probe.tuning import variants
from oomscope.units import GiB, MiB
from tests.integration.program import OOMSCOPE, commit, git, new_repo
from tests.integration.recipes import blocks
from tests.unit.gate.nights import measured

SUITE = "cases: [{name: it's grown, preset: gpt-tiny}]\n"
NAMES = ["it's grown"]
GH = '#!/bin/sh\necho "gh $*" > "$CALLS"\n'


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone in which a night was worse than its baseline, with the documents of that night and of a green one."""
    origin = new_repo(tmp_path / "origin")
    (script,) = blocks("README.md", "bash")
    commit(origin, "Begin", {"ci/memory-cpu.yaml": SUITE, "ci/accept.sh": script})
    suite, baseline = origin / "ci/memory-cpu.yaml", "ci/memory-cpu.baseline.yaml"
    monkeypatch.setattr(variants, "launched", lambda _job, _stop: measured(GiB))
    assert run(["gate", "update", str(suite), "--quiet"]) == ExitCode.OK
    commit(origin, "Accept", {baseline: (origin / baseline).read_text()})
    for name, size, code in (("green", GiB, ExitCode.OK), ("worse", GiB + MiB, ExitCode.REGRESSION)):
        monkeypatch.setattr(variants, "launched", lambda _job, _stop, size=size: measured(size))
        words = ["--quiet", "--no-ledger", "--result", str(tmp_path / f"{name}.json")]
        assert run(["gate", "run", str(suite), *words]) == code
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    for key, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
        git(tmp_path / "clone", "config", key, value)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "oomscope").symlink_to(OOMSCOPE)
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    return tmp_path / "clone"


def accept(clone: Path, *words: str) -> int:
    place = clone.parent
    environment = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "CALLS": str(place / "calls")}
    return subprocess.run(["bash", "ci/accept.sh", *words], cwd=clone, env=environment, check=False).returncode


def test_what_is_accepted_by_name_is_proposed(clone: Path) -> None:
    main = git(clone, "symbolic-ref", "--short", "HEAD")
    assert accept(clone, "cpu", "../worse.json", *NAMES) == ExitCode.OK
    (branch,) = [
        name for name in git(clone.parent / "origin", "branch", "--format=%(refname:short)").split() if name != main
    ]
    assert branch.startswith("memory-cpu-")
    changed = git(clone, "diff", "--stat", "--name-only", f"origin/{main}", f"origin/{branch}")
    assert changed == "ci/memory-cpu.baseline.yaml"
    assert (clone.parent / "calls").read_text() == "gh pr create --fill\n"


@pytest.mark.parametrize(("night", "code"), [("green", ExitCode.OK), ("worse", ExitCode.REGRESSION)])
def test_where_nothing_is_accepted_nothing_is_proposed(clone: Path, night: str, code: ExitCode) -> None:
    head = git(clone, "rev-parse", "HEAD")
    assert accept(clone, "cpu", f"../{night}.json") == code
    assert git(clone, "rev-parse", "HEAD") == head
    assert git(clone, "status", "--porcelain") == ""
    assert not (clone.parent / "calls").exists()
