"""Searches whose probes are jobs of a real Slurm: the culprit, jobs that are lost, and a queue that is left empty."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from oomscope.errors import ExitCode
from tests.integration.program import OOMSCOPE
from tests.unit.bisect.repos import Repo, fingerprint

pytestmark = pytest.mark.usefixtures("slurm")

PATIENCE_S = 120


class World:
    """A repository whose commits print a number, and searches of it."""

    def __init__(self, folder: Path, scripts: Sequence[str]) -> None:
        self.repo = Repo(folder / "repo")
        self.hashes = self.repo.import_line("probe.sh", scripts)
        self.state = folder / "state"

    def words(self, *more: str) -> list[str]:
        ends = [f"{self.hashes[0]}..main", "--repo", str(self.repo.path), "--state", str(self.state)]
        probe = ["--command", "sh probe.sh", "--metric-regex", r"peak (\d+)", "--bad", "requested>1000"]
        return [str(OOMSCOPE), "bisect", *ends, *probe, "--executor", "slurm", *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.words(*more, "--json"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def search(self, *more: str) -> dict[str, Any]:
        return answer(self.start(*more))

    def assert_clean(self) -> None:
        for left in ("checkouts", "jobs"):
            assert not list((self.state / left).iterdir()), left
        wait_until(lambda: not queue(), "the queue is empty")


def answer(process: subprocess.Popen[str], code: ExitCode = ExitCode.OK) -> dict[str, Any]:
    out, err = process.communicate(timeout=580)
    assert process.returncode == code, err
    found: dict[str, Any] = json.loads(out)
    return found


def queue() -> list[str]:
    """Return the jobs that wait or run."""
    return said("squeue", "--noheader", "--format=%i").split()


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wait_until(is_so: Callable[[], object], what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def peak(size: int) -> str:
    return f"echo peak {size}\n"


def test_the_culprit_of_a_line(tmp_path: Path) -> None:
    world = World(tmp_path, [peak(size) for size in (1, 2, 3, 4, 5, 6, 5007, 5008, 5009)])
    before = fingerprint(world.repo.path)
    found = world.search("--jobs", "3", "--slurm", "partition=main", "--slurm", "exclusive=user")
    assert found["culprit"]["commit"] == world.hashes[6]
    assert fingerprint(world.repo.path) == before
    world.assert_clean()


def test_the_bundled_transformer_on_a_node(tmp_path: Path) -> None:
    for name, size in (("good", 1), ("bad", 4)):
        (tmp_path / f"{name}.yaml").write_text(f"preset: gpt-tiny\ndata: {{micro_batch_size: {size}}}\n")
    ends = f"{tmp_path}/good.yaml..{tmp_path}/bad.yaml"
    words = [
        str(OOMSCOPE),
        "bisect",
        ends,
        "--backend",
        "virtual",
        "--bad",
        "requested>100MiB",
        "--json",
        "--executor",
        "slurm",
    ]
    here = subprocess.run([*words[:-2], "--state", f"{tmp_path}/here"], capture_output=True, text=True, check=False)
    jobs = subprocess.run([*words, "--state", f"{tmp_path}/jobs"], capture_output=True, text=True, check=False)
    assert here.returncode == jobs.returncode, jobs.stderr
    ours, theirs = json.loads(here.stdout), json.loads(jobs.stdout)
    assert theirs["outcome"] == ours["outcome"]
    for measured in ("answer", "requested_bytes", "reserved_bytes"):
        assert [probe[measured] for probe in theirs["probes"]] == [probe[measured] for probe in ours["probes"]]


def test_a_job_that_is_cancelled_in_mid_probe_is_submitted_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    slow = f'echo run >> {runs}; test "$(wc -l < {runs})" -gt 1 || sleep 300; echo peak 5000\n'
    world = World(tmp_path, [peak(1), slow, peak(5001)])
    process = world.start()
    wait_until(runs.exists, "the slow probe runs")
    said("scancel", *queue())
    assert answer(process)["culprit"]["commit"] == world.hashes[1]
    assert runs.read_text().split() == ["run", "run"]
    world.assert_clean()


@pytest.mark.timeout(600)
def test_too_short_a_time_is_untestable_and_never_bad(tmp_path: Path) -> None:
    world = World(tmp_path, [peak(1), "sleep 300; echo peak 5000\n", peak(5001)])
    found = answer(world.start("--slurm", "time=1"), ExitCode.INCONCLUSIVE)
    assert found["outcome"] == "suspects"
    assert {suspect["commit"] for suspect in found["suspects"]} == set(world.hashes[1:])
    slow = next(probe for probe in found["probes"] if probe["commit"] == world.hashes[1])
    assert slow["answer"] == "untestable"
    assert "lost: each of 3 tries was lost" in slow["reason"]
    assert "TIMEOUT" in slow["reason"]
    world.assert_clean()


def test_ctrl_c_cancels_all_jobs(tmp_path: Path) -> None:
    started = tmp_path / "started"
    world = World(tmp_path, [f"touch {started}; sleep 300; echo peak {size}\n" for size in (1, 2, 5003)])
    process = world.start("--jobs", "2")
    wait_until(started.exists, "a probe runs")
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INTERRUPTED
    world.assert_clean()


def test_a_deadline_ends_what_waits_in_the_queue(tmp_path: Path) -> None:
    world = World(tmp_path, [peak(1), peak(5002)])
    found = answer(world.start("--deadline", "3", "--slurm", "begin=now+1hour"), ExitCode.INCONCLUSIVE)
    assert found["outcome"] == "inconclusive"
    world.assert_clean()


def test_what_slurm_refuses_is_one_line(tmp_path: Path) -> None:
    world = World(tmp_path, [peak(1), peak(5002)])
    process = world.start("--slurm", "partition=nowhere")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.MACHINE_UNFIT
    assert "Invalid partition" in err.splitlines()[-1]
    world.assert_clean()
