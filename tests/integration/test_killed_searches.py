"""Killed by SIGKILL at any moment a search loses at most what ran, goes on, and comes to the same answer."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

ROOT = Path(__file__).resolve().parents[2]
KILLS = 30
FAR_S = 120.0
HARNESS = """\
import time
import oomscope

def setup(ctx):
    return oomscope.Target(step=lambda: time.sleep(600))
"""


def test_killed_at_random_moments_it_comes_to_the_same_answer(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    sizes = [100 + 10 * (index // 10) + (2000 if index >= 41 else 0) for index in range(60)]
    contents = ["import" if index % 13 == 5 else f"{size}\n" for index, size in enumerate(sizes)]
    hashes = repo.import_line("size.txt", contents)
    repo.git("tag", "good", hashes[0])
    (tmp_path / "harness.py").write_text("# drives it\n")
    before = fingerprint(repo.path)
    command = [sys.executable, "-m", "tests.integration.killed_searches", str(tmp_path), str(KILLS), "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] == KILLS
    assert fingerprint(repo.path) == before


class Program:
    """The installed program, with its whole family in sight: all of them carry a variable."""

    def __init__(self, directory: Path) -> None:
        self.token = secrets.token_hex(8)
        self.directory = directory
        self.environment = {**os.environ, "OOMSCOPE_TEST_FAMILY": self.token}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [str(OOMSCOPE), "bisect", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.directory, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def killed(self, after_s: float, *arguments: str) -> None:
        """Run it, and kill it after a while unless it has ended."""
        with self.start(*arguments) as process:
            try:
                process.communicate(timeout=after_s)
            except subprocess.TimeoutExpired:
                process.kill()

    def ended(self, *arguments: str) -> dict[str, Any]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        document: dict[str, Any] = json.loads(out)
        return document

    def family(self) -> list[int]:
        """Return the processes that it started and that are alive."""
        entry, found = f"OOMSCOPE_TEST_FAMILY={self.token}".encode(), []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if entry in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
            except OSError:
                continue
        return found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_line("size.txt", [f"{64 + index + (4096 if index >= 13 else 0)}\n" for index in range(30)])
    repo.git("tag", "good", hashes[0])
    return Program(tmp_path)


def test_warm_processes_end_with_a_killed_search(program: Program, tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text(HARNESS)
    words = ("good..main", "--repo", "repo", "--harness", "harness.py", "--backend", "virtual", "--state", "state")
    with program.start(*words, "--jobs", "2") as process:
        try:
            # The search, its warm parent, and a probe in each slot.
            wait_for(lambda: len(program.family()) >= 4)
        finally:
            process.kill()
    wait_for(lambda: not program.family())
    assert program.ended("log", "1", "--state", "state", "--json")["state"] in {"interrupted", "ended"}


def wait_for(look: Callable[[], bool], seconds: float = FAR_S) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.05)
