"""States come from squeue, for all jobs by one call, and only some of them are the end of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.bisect.cluster.squeue import GONE, QueueWatcher, states_of


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def say(programs: Path, text: str, status: int = 0) -> None:
    """Let squeue print ``text``, and count how often it is asked."""
    program = programs / "squeue"
    program.write_text(f"#!/bin/sh\necho asked >> {programs}/calls\nprintf '{text}'\nexit {status}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED"])
def test_a_job_that_may_yet_run_is_not_done(programs: Path, state: str) -> None:
    say(programs, f"7 {state}\\n")
    watcher = QueueWatcher()
    assert not watcher.is_done("7", mode="force")


@pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "COMPLETED"])
def test_a_job_that_ended_is_done_for_good(programs: Path, state: str) -> None:
    say(programs, f"7 {state}\\n")
    watcher = QueueWatcher()
    assert watcher.is_done("7", mode="force")
    say(programs, "")
    assert watcher.is_done("7", mode="force")
    assert watcher.get_state("7") == state


def test_a_job_that_slurm_forgot_has_ended(programs: Path) -> None:
    say(programs, "8 RUNNING\\n")
    watcher = QueueWatcher()
    watcher.register_job("8")
    assert watcher.is_done("7", mode="force")
    assert watcher.get_state("7") == GONE
    assert not watcher.is_done("8", mode="cache")
    assert (programs / "calls").read_text().count("asked") <= 2, "one call tells of all"


def test_a_controller_that_does_not_answer_says_nothing_of_jobs(programs: Path) -> None:
    say(programs, "7 RUNNING\\n")
    watcher = QueueWatcher()
    assert not watcher.is_done("7", mode="force")
    say(programs, "", status=1)
    assert states_of("nobody") is None
    assert not watcher.is_done("7", mode="force")
    assert watcher.get_state("7", mode="cache") == "RUNNING"
