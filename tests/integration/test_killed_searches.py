"""Killed by SIGKILL at any moment a search loses at most what ran, goes on, and comes to the same answer."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.killed_searches import answer_of_document
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

ROOT = Path(__file__).resolve().parents[2]
KILLS = 44
KILLS_OF_THE_PROGRAM = 6
FAR_S = 60.0
QUIETLY = ("--json", "--quiet")

HARNESS = """\
import torch
from pathlib import Path
import oomscope

def setup(ctx):
    size = int(Path("size.txt").read_text())
    def step():
        held = torch.empty(size, 1024, 1024, dtype=torch.uint8, device=ctx.device)
    return oomscope.Target(step=step)
"""


def test_killed_at_random_moments_it_comes_to_the_same_answer(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    sizes = [100 + 10 * (index // 20) + (2000 if index >= 83 else 0) for index in range(120)]
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

    def ended(self, *arguments: str) -> dict[str, object]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        return json.loads(out)

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
    hashes = repo.import_line("size.txt", [f"{64 + index + (4096 if index >= 21 else 0)}\n" for index in range(40)])
    repo.git("tag", "good", hashes[0])
    (tmp_path / "harness.py").write_text(HARNESS)
    return Program(tmp_path)


def test_the_program_killed_at_random_moments(program: Program, tmp_path: Path) -> None:
    begin = [
        "good..main",
        "--repo",
        "repo",
        "--harness",
        "harness.py",
        "--limit",
        "4GiB",
        "--fresh",
        "--json",
        "--quiet",
    ]
    before = fingerprint(tmp_path / "repo")
    began = time.monotonic()
    expected = program.ended(*begin, "--state", "undisturbed")
    took_s = time.monotonic() - began
    chance, lives = random.Random(5), begin
    for _ in range(KILLS_OF_THE_PROGRAM):
        process = program.start(*lives, "--state", "state")
        try:
            process.communicate(timeout=chance.uniform(took_s / 3, took_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        wait_for(lambda: not program.family())
        if (tmp_path / "state" / "journals" / "1.jsonl").exists():
            lives = ["resume", "1", *QUIETLY]
    resumed = program.ended(*lives, "--state", "state")
    assert answer_of_document(resumed) == answer_of_document(expected)
    assert resumed["culprit"] is not None
    assert list((tmp_path / "state" / "checkouts").iterdir()) == []
    assert fingerprint(tmp_path / "repo") == before


def wait_for(look: Callable[[], bool], seconds: float = FAR_S) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "a process outlived the program that started it"
        time.sleep(0.05)
