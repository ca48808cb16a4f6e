"""The installed program where things are missing that one takes for granted: room, a home, git, a terminal, UTF-8."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.bisect.repos import Repo

SNAPSHOT = Path("fixtures/snapshots/torch-2.6-wrapped.json").absolute()
CONFIG = "preset: gpt-tiny\nmodel: {position_embedding_type: rope}\nprobe: {backend: virtual}\n"
PLACES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME", "TMPDIR")


def oomscope(
    place: Path, *words: object, limit: str = "", **environment: str | None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``oomscope`` in ``place`` under the shell's ``limit``; a variable that is None is taken away."""
    variables: dict[str, str | None] = {**os.environ, **{name: str(place) for name in PLACES}, **environment}
    command = [sys.executable, "-m", "oomscope", *map(str, words)]
    shell = ["bash", "-c", f'{limit}; exec "$@"', "bash", *command] if limit else command
    return subprocess.run(
        shell,
        cwd=place,
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )


def one_line(done: subprocess.CompletedProcess[bytes], code: int) -> str:
    """Return the one line of an error that a command ended with."""
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (code, 1), done.stderr.decode()
    assert lines[0].startswith("oomscope: ")
    assert "Traceback" not in lines[0]
    assert ";" in lines[0], "no next step"
    return lines[0]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "repo")
    made.import_line("a.yaml", [CONFIG, CONFIG + "# more\n"], "commit {0}")
    return made


def test_a_page_that_grows_too_large_is_not_left_behind(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    # The limit is above the bytecode of a module: Python 3.11 would keep the part that it could write.
    done = oomscope(tmp_path, "explain", SNAPSHOT, "--html", page, limit="ulimit -f 48")
    assert "cannot write: File too large" in one_line(done, 74)
    assert done.stdout, "the report is printed all the same"
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_cannot_be_written_to(tmp_path: Path, repo: Repo) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(b"")  # a file in its place: it stops root as well
    environment = {"XDG_STATE_HOME": str(locked), "XDG_CACHE_HOME": str(locked)}
    done = oomscope(repo.path, "bisect", "HEAD~1..HEAD", "--config", "a.yaml", "--json", **environment)
    assert done.returncode in {2, 5}, done.stderr
    assert b"Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["remedy"]
    (repo.path / "memory.yaml").write_text("cases: [{name: tiny, preset: gpt-tiny}]\n")
    one_line(oomscope(repo.path, "gate", "run", "memory.yaml", **environment), 2)


def test_the_plain_locale(tmp_path: Path) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "größe.yaml").write_text("preset: gpt-tiny\nmodel: {größe: 3}\n", encoding="utf-8")
    done = oomscope(tmp_path, "config", "check", "größe.yaml", **variables)
    assert "unknown key model.gr" in one_line(done, 2)
    shutil.copy(SNAPSHOT, tmp_path / "größe.json")
    done = oomscope(tmp_path, "explain", "größe.json", "--html", "größe.html", **variables)
    assert done.returncode == 0, done.stderr
    assert "<!doctype html" in (tmp_path / "größe.html").read_text(encoding="utf-8").lower()
