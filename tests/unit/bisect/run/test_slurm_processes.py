"""Whole searches as jobs, on submitit's own local executor: the same answer, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.places import Places
from oomscope.bisect.run.slurm import ClusterRunner, ClusterSettings
from oomscope.bisect.targets.subjects import own_code_of
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.config.load import load_preset
from oomscope.probe.job import CommandTarget, ProbeJob
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.worlds import culprit

PROCESSES = ClusterSettings(scheduler="processes")
PRINTS = CommandTarget(repo="", command="cat size.txt", metric_regex=r"peak (\d+)")


def test_a_search_as_jobs_finds_the_culprit(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_line("size.txt", [f"peak {size}\n" for size in (100, 5000, 6000)])
    before = fingerprint(repo.path)
    request = CommitRequest(
        repo=repo.path,
        range=RevisionRange(good=hashes[0], bad="main"),
        subject=own_code_of(PRINTS, load_preset("gpt-tiny").config),
        places=Places(tmp_path / "state"),
        bad=Bad.parse("requested>1000"),
        jobs=2,
        cluster=PROCESSES,
    )
    assert culprit(bisect_commits(request)).commit == hashes[1]
    assert fingerprint(repo.path) == before
    for left in ("checkouts", "jobs"):
        assert not list((tmp_path / "state" / left).iterdir())


def runner(tmp_path: Path) -> ClusterRunner:
    return ClusterRunner(PROCESSES, tmp_path / "jobs", grace_s=0.0)


def test_a_job_that_is_killed_in_mid_probe_is_lost_and_may_be_tried_again(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f'echo $PPID >> {started}; test "$(wc -l < {started})" -gt 1 || sleep 60; echo peak 7'
    (tmp_path / "script").write_text(script)
    job = ProbeJob(target=CommandTarget(repo=str(tmp_path), command="sh script", metric_regex=r"peak (\d+)"))

    def kill_the_first() -> None:
        while not started.exists():
            time.sleep(0.05)
        os.kill(job_of(tmp_path), signal.SIGTERM)

    killer = threading.Thread(target=kill_the_first)
    with runner(tmp_path) as jobs:
        killer.start()
        lost = jobs.run(job).failure
        killer.join()
        result = jobs.run(job)
    assert lost is not None
    assert lost.kind == "lost"
    assert result.peak is not None, result.failure
    assert result.peak.requested_bytes == 7


def job_of(tmp_path: Path) -> int:
    """Return the process of the only job: the one that runs submitit in the folder of jobs."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"submitit.core._submit" in words and any(str(tmp_path).encode() in word for word in words):
            return int(directory.name)
    raise AssertionError("no job runs")
