"""One commit or configuration under two environments, alone and mixed with configuration keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect.change_bisect import bisect_configs, bisect_environment
from oomscope.bisect.changes.environment import EnvironmentDeltas
from oomscope.bisect.requests import ConfigRequest, EnvironmentRequest
from oomscope.bisect.results.result import BisectResult, KeysCulprit
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.vcs.ranges import FileAt, FileRange
from oomscope.errors import UsageError
from oomscope.probe.job import BundledTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.repos import Repo
from tests.unit.bisect.worlds import SETTINGS, harness_code, measure

CONFIG = """\
preset: gpt-tiny
model: {position_embedding_type: rope}
data: {seq_length: %d}
probe: {backend: virtual}
"""
ENVIRONMENT = EnvironmentDeltas(
    low={"WORKERS": "1", "CHUNK": "64"}, high={"WORKERS": "8", "LOG": "1"}, ends=("good.env", "bad.env")
)


class Probe:
    """Bytes are sequence (or 100) times workers; remembers the jobs."""

    def __init__(self) -> None:
        self.jobs: list[ProbeJob] = []

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        self.jobs.append(job)
        sequence = job.target.config["data"]["seq_length"] if isinstance(job.target, BundledTarget) else 100
        workers = job.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") or job.environment.get("WORKERS") or 1
        return measure(sequence * int(workers))


def keys_of(result: BisectResult) -> dict[str, tuple[Any, Any, int | None]]:
    assert result.outcome == "culprit", result.message
    assert isinstance(result.culprit, KeysCulprit)
    json.dumps(result.to_json())
    return {
        row.key: (row.good, row.bad, row.delta.requested_bytes if row.delta else None) for row in result.culprit.keys
    }


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "repo")
    repo.commit("one", {"conf/a.yaml": CONFIG % 100, "train.py": ""})
    return repo


def test_a_harness_under_two_environments(tmp_path: Path, repo: Repo) -> None:
    harness = tmp_path / "harness.py"
    harness.touch()
    request = EnvironmentRequest(
        repo=repo.path,
        revision="HEAD",
        subject=harness_code(harness, SETTINGS),
        layers=(EnvironmentDeltas(low=ENVIRONMENT.low, high={**ENVIRONMENT.high, "WORKERS": "16"}),),
        state_dirs=StateDirs(tmp_path / "state"),
    )
    probe = Probe()
    result = bisect_environment(request, probe=probe, environment={})
    assert keys_of(result) == {"env:WORKERS": ("1", "16", 1500)}
    assert (result.axis, result.candidates) == ("environment", 3)
    assert result.first_bad is not None
    assert result.first_bad.commands[-1].startswith("env -u LOG CHUNK=64 WORKERS=16 oomscope probe --harness")
    assert probe.jobs[0].environment == {"CHUNK": "64", "LOG": None, "WORKERS": "1"}


def test_keys_and_variables_that_only_interact(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.yaml" for name in ("good", "bad")}
    files["good"].write_text(CONFIG % 100)
    files["bad"].write_text(CONFIG % 300)
    name = "CUDA_DEVICE_MAX_CONNECTIONS"  # one that a bundled target is measured under
    request = ConfigRequest(
        range=FileRange(**files),
        layers=(EnvironmentDeltas(low={name: "1", "LOG": "0"}, high={name: "4", "LOG": "1"}),),
        state_dirs=StateDirs(tmp_path / "state"),
    )
    probe = Probe()
    result = bisect_configs(request, probe=probe, environment={})
    assert keys_of(result) == {"data.seq_length": (100, 300, 200), f"env:{name}": ("1", "4", 300)}
    assert isinstance(result.culprit, KeysCulprit)
    assert result.culprit.interaction is not None
    assert result.culprit.interaction.requested_bytes == 1100 - 200 - 300
    assert len(probe.jobs) == 4, "what a bundled target cannot see is not probed anew"


def test_sides_without_a_difference_are_refused(tmp_path: Path, repo: Repo) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(CONFIG % 100)
    means: Any = {
        "layers": (EnvironmentDeltas(low={"A": "1"}, high={"A": "1"}),),
        "state_dirs": StateDirs(tmp_path / "state"),
    }
    at_head = FileAt(revision="HEAD", path="conf/a.yaml")
    for ends in (FileRange(good=file, bad=file), FileRange(good=at_head, bad=at_head)):
        with pytest.raises(UsageError, match="do not differ"):
            bisect_configs(ConfigRequest(range=ends, repo=repo.path, **means), probe=Probe(), environment={})
    subject = harness_code(file, SETTINGS)
    with pytest.raises(UsageError, match="do not differ"):
        bisect_environment(EnvironmentRequest(repo=repo.path, revision="HEAD", subject=subject, **means), probe=Probe())


def test_commits_between_which_no_key_changes_are_searched(tmp_path: Path, repo: Repo) -> None:
    repo.commit("elsewhere", {"other": "1"})
    good, bad = (FileAt(revision=revision, path="conf/a.yaml") for revision in ("HEAD~1", "HEAD"))
    request = ConfigRequest(
        range=FileRange(good=good, bad=bad), repo=repo.path, state_dirs=StateDirs(tmp_path / "state")
    )
    assert bisect_configs(request, probe=Probe(), environment={}).outcome == "no_culprit"


def test_the_configuration_as_it_stood_at_two_commits(tmp_path: Path, repo: Repo) -> None:
    for size in (200, 2000):
        repo.commit(f"to {size}", {"conf/a.yaml": (CONFIG % size).replace("virtual}", "virtual, seed: 7}")})
    ends = FileRange(
        good=FileAt(revision="HEAD~2", path="conf/a.yaml"), bad=FileAt(revision="main", path="conf/a.yaml")
    )
    request = ConfigRequest(range=ends, repo=repo.path, state_dirs=StateDirs(tmp_path / "state"))
    result = bisect_configs(request, probe=Probe(), environment={})
    assert keys_of(result) == {"data.seq_length": (100, 2000, 1900)}
    assert (result.good, result.bad) == ("HEAD~2:conf/a.yaml", "main:conf/a.yaml")
    assert result.first_bad is not None
    show, run = result.first_bad.commands
    short = repo.git("rev-parse", "HEAD~2")[:10]
    assert show.endswith(f"show {repo.git('rev-parse', 'HEAD~2')}:conf/a.yaml > a-{short}.yaml")
    assert run == f"oomscope probe a-{short}.yaml data.seq_length=2000"
