"""What a cluster does to a job is no answer about the code: it is tried again, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.run.cache import is_repeatable
from oomscope.bisect.run.experiment import OutOfTimeError
from oomscope.bisect.run.slurm import OURS, ClusterRunner, measure, sbatch_options
from oomscope.bisect.search.line import Answer
from oomscope.errors import UsageError
from oomscope.probe.job import CommandTarget, HarnessTarget, ProbeJob
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import fits

JOB = ProbeJob(target=CommandTarget(repo="/clone", command="true"), backend="virtual")


@dataclass
class Played:
    """A job that ends as it is told to: with an answer, lost, or never."""

    job_id: str
    folder: Path
    answer: dict[str, Any] | None = None
    state: str = "COMPLETED"
    ends: bool = True
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.paths = SimpleNamespace(result_pickle=self.folder / f"{self.job_id}_result")
        if self.answer is not None:
            self.paths.result_pickle.touch()

    def done(self, force_check: bool = False) -> bool:
        return self.ends or self.cancelled

    def result(self) -> dict[str, Any] | None:
        return self.answer

    def cancel(self, check: bool = True) -> None:
        self.cancelled = True

    def stderr(self) -> str:
        return "slurmstepd: error: ***"


@dataclass
class Executor:
    """Gives one job after the other, and remembers them."""

    folder: Path
    fates: Iterator[dict[str, Any]]
    jobs: list[Played] = field(default_factory=list)
    orders: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def update_parameters(self, **parameters: Any) -> None:
        self.parameters = parameters

    def submit(self, _measure: object, order: str) -> Played:
        self.orders.append(order)
        self.jobs.append(Played(job_id=str(len(self.jobs) + 1), folder=self.folder, **next(self.fates)))
        return self.jobs[-1]


Make = Callable[..., tuple[ClusterRunner, Executor]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a runner whose jobs meet the fates given."""
    runners = []

    def made(*fates: dict[str, Any], **options: Any) -> tuple[ClusterRunner, Executor]:
        executor = Executor(tmp_path, iter(fates))
        monkeypatch.setattr("submitit.SlurmExecutor", lambda _folder: executor)
        runner = ClusterRunner({}, tmp_path / "jobs", grace_s=0.0, **options)
        runner.__enter__()
        runners.append(runner)
        return runner, executor

    yield made
    for runner in runners:
        runner.__exit__(None, None, None)
    assert not list((tmp_path / "jobs").iterdir())


MEASURED: dict[str, Any] = {"answer": fits(7).to_json()}


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY"])
def test_a_lost_job_is_cancelled_and_untestable_and_never_bad(make: Make, state: str) -> None:
    runner, executor = make({"state": state})
    result = runner.run(JOB)
    assert [job.cancelled for job in executor.jobs] == [True], "it may yet run, whatever Slurm says"
    assert result.failure is not None
    assert (result.failure.kind, result.failure.detail) == ("lost", "slurmstepd: error: ***")
    assert result.backend == "command"
    assert state in result.failure.message
    for bad in ("any-oom", "capacity", "fragmentation", "requested>1", "reserved>1"):
        assert Bad.parse(bad).judge(result).answer is Answer.UNTESTABLE
    assert not is_repeatable(result), "another search may try again"


def test_a_job_that_is_not_needed_is_cancelled(make: Make) -> None:
    runner, executor = make({"ends": False})
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        runner.run(JOB, stop=stop)
    assert executor.jobs[0].cancelled


def test_time_in_the_queue_counts(make: Make) -> None:
    left = iter([5.0, 1.0, 0.0])
    runner, executor = make({"ends": False}, left_s=lambda: next(left))
    with pytest.raises(OutOfTimeError):
        runner.run(JOB)
    assert executor.jobs[0].cancelled


def test_results_are_kept_under_what_chooses_nodes(tmp_path: Path) -> None:
    one, other = (
        ClusterRunner(sbatch_options([word]), tmp_path).machine({"CUDA_VISIBLE_DEVICES": "3"})
        for word in ("partition=a100", "partition=h100")
    )
    assert one.gpus != other.gpus
    assert one.versions == other.versions


def test_a_target_sees_nothing_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "SLURMD_NODENAME", "SUBMITIT_EXECUTOR", "SBATCH_PARTITION", "PMIX_RANK"):
        monkeypatch.setenv(name, "7")
    script = 'echo peak $(env | grep -c -E "^(SLURM|SUBMITIT|SBATCH|PMIX)")'
    (tmp_path / "script").write_text(script)
    job = ProbeJob(target=CommandTarget(repo=str(tmp_path), command="sh script", metric_regex=r"peak (\d+)"))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)]
    result = ProbeResult.from_json(measure(json.dumps(job.to_json())))
    assert result.peak is not None, result.failure
    assert result.peak.requested_bytes == 0
    assert os.environ["SLURM_PROCID"] == "7", "submitit still needs them"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)] == handlers


def test_a_file_that_the_node_does_not_see_is_named(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    job = ProbeJob(target=HarnessTarget(repo=str(tmp_path), harness=str(harness)))
    result = ProbeResult.from_json(measure(json.dumps(job.to_json())))
    assert result.failure is not None
    assert result.failure.kind == "unfit"
    assert str(harness) in result.failure.message
    assert "file system" in result.failure.message


def test_options_are_those_of_sbatch_however_they_are_spelled() -> None:
    words = ["partition=gpu", "gpus_per_node=1", "--mem=8G", "exclusive", "constraint=a100&nvlink", "comment=a=b"]
    assert sbatch_options(words) == {
        "partition": "gpu",
        "gpus-per-node": "1",
        "mem": "8G",
        "exclusive": True,
        "constraint": "a100&nvlink",
        "comment": "a=b",
    }


@pytest.mark.parametrize("word", ["", "=gpu", "a b=c", "comment=one\n#SBATCH --wrap=evil", "-p gpu", "Partition=gpu"])
def test_what_is_no_option_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not an option of sbatch"):
        sbatch_options([word])


@pytest.mark.parametrize("name", sorted(OURS))
def test_how_a_result_comes_back_cannot_be_chosen(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be chosen"):
        sbatch_options([f"{name}=1"])
