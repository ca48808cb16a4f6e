"""Whole searches as jobs, on submitit's own local executor: the same answer, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import submitit

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.targets.subjects import own_code_of
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.config.load import load_preset
from oomscope.probe.job import CommandTarget
from tests.unit.bisect.repos import Repo, fingerprint
from tests.unit.bisect.worlds import culprit

PRINTS = CommandTarget(repo="", command="cat size.txt", metric_regex=r"peak (\d+)")


class Processes(submitit.LocalExecutor):
    """Runs each job as a process of this machine, which has no options of sbatch."""

    def update_parameters(self, *, additional_parameters: dict[str, Any]) -> None:
        super().update_parameters(timeout_min=int(additional_parameters["time"]))


def test_a_search_as_jobs_finds_the_culprit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitit, "SlurmExecutor", Processes)
    repo = Repo(tmp_path / "repo")
    hashes = repo.import_line("size.txt", [f"peak {size}\n" for size in (100, 5000, 6000)])
    before = fingerprint(repo.path)
    request = CommitRequest(
        repo=repo.path,
        range=RevisionRange(good=hashes[0], bad="main"),
        subject=own_code_of(PRINTS, load_preset("gpt-tiny").config),
        state_dirs=StateDirs(tmp_path / "state"),
        bad=Bad.parse("requested>1000"),
        jobs=2,
        cluster={},
    )
    assert culprit(bisect_commits(request)).commit == hashes[1]
    assert fingerprint(repo.path) == before
    for left in ("checkouts", "jobs"):
        assert not list((tmp_path / "state" / left).iterdir())
