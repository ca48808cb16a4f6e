"""What a cluster does to a job is no answer about the code: it is tried again, and never left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomscope.bisect.cache import is_repeatable
from oomscope.bisect.cluster.node import Order
from oomscope.bisect.cluster.runner import ClusterRunner
from oomscope.bisect.cluster.settings import ClusterSettings
from oomscope.bisect.deadline import OutOfTimeError
from oomscope.bisect.predicate import Bad
from oomscope.bisect.search import Answer
from oomscope.errors import MachineUnfitError
from oomscope.probe.job import CommandTarget, ProbeJob, Progress
from oomscope.probe.launch import StoppedError
from tests.unit.bisect.results import fits

JOB = ProbeJob(target=CommandTarget(repo="/clone", command="true"), backend="virtual")
HERE = {"versions": {"python": "3.11"}, "packages": "p", "gpus": ["one card"]}


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
class Scheduler:
    """Gives one job after the other, and remembers them."""

    folder: Path
    fates: Iterator[dict[str, Any]]
    jobs: list[Played] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    minutes: list[int] = field(default_factory=list)

    def submit(self, order: Order, minutes: int) -> Played:
        self.orders.append(order)
        self.minutes.append(minutes)
        self.jobs.append(Played(job_id=str(len(self.jobs) + 1), folder=self.folder, **next(self.fates)))
        return self.jobs[-1]


Make = Callable[..., tuple[ClusterRunner, Scheduler]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a runner whose jobs meet the fates given."""
    runners = []

    def made(*fates: dict[str, Any], **options: Any) -> tuple[ClusterRunner, Scheduler]:
        settings = ClusterSettings(scheduler="processes")
        runner = ClusterRunner(settings, tmp_path / "jobs", grace_s=0.0, **options)
        runner.__enter__()
        runners.append(runner)
        runner._scheduler = scheduler = Scheduler(tmp_path, iter(fates))  # type: ignore[assignment]
        return runner, scheduler

    yield made
    for runner in runners:
        runner.__exit__(None, None, None)
    assert not list((tmp_path / "jobs").iterdir())


def measured(**machine: Any) -> dict[str, Any]:
    return {"answer": {"host": "n1", "machine": {**HERE, **machine}, "result": fits(7).to_json()}}


def lost(state: str) -> dict[str, Any]:
    return {"state": state}


def test_what_a_job_is_told_and_answers(make: Make) -> None:
    runner, scheduler = make(measured())
    assert runner.run(JOB).peak == fits(7).peak
    assert [ProbeJob.from_json(order.job or {}) for order in scheduler.orders] == [JOB]


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "PREEMPTED", "CANCELLED", "OUT_OF_MEMORY", "GONE"])
def test_a_lost_job_is_cancelled_and_untestable_and_never_bad(make: Make, state: str) -> None:
    runner, scheduler = make(lost(state))
    result = runner.run(JOB)
    assert [job.cancelled for job in scheduler.jobs] == [True], "it may yet run, whatever squeue says"
    assert result.failure is not None
    assert (result.failure.kind, result.failure.detail) == ("lost", "slurmstepd: error: ***")
    assert state in result.failure.message
    for bad in ("any-oom", "capacity", "fragmentation", "requested>1", "reserved>1"):
        assert Bad.parse(bad).judge(result).answer is Answer.UNTESTABLE
    assert not is_repeatable(result), "another search may try again"


def test_a_job_has_time_for_its_probe_and_for_starting(make: Make) -> None:
    runner, scheduler = make(measured())
    runner.run(replace(JOB, timeout_s=601))
    assert scheduler.minutes == [11 + 3]


def test_nobody_waits_and_the_job_is_cancelled(make: Make) -> None:
    runner, scheduler = make({"ends": False})
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        runner.run(JOB, stop=stop)
    assert scheduler.jobs[0].cancelled


def test_time_in_the_queue_counts(make: Make) -> None:
    left = iter([5.0, 1.0, 0.0])
    runner, scheduler = make({"ends": False}, left_s=lambda: next(left))
    with pytest.raises(OutOfTimeError):
        runner.run(JOB)
    assert scheduler.jobs[0].cancelled


def test_an_interrupt_cancels_the_job(make: Make) -> None:
    runner, scheduler = make({"ends": False})

    def interrupt(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(JOB, interrupt)
    assert scheduler.jobs[0].cancelled


def test_progress_comes_through_a_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, scheduler = make({"ends": False})
    seen: list[Progress] = []

    def told(progress: Progress) -> None:
        seen.append(progress)
        said = Path(scheduler.orders[0].progress)
        if progress.stage == "queue":
            half = json.dumps(Progress(stage="step", done=1, total=2).to_json())
            said.write_text(f"{half}\n{half[:9]}")
        else:
            scheduler.jobs[0].answer = measured()["answer"]
            scheduler.jobs[0].paths.result_pickle.touch()

    runner.run(JOB, told)
    assert [(step.stage, step.done, step.total) for step in seen] == [("queue", 0, 0), ("step", 1, 2)]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"gpus": ["another"]}, "other cards"),
        ({"versions": {"python": "3.12"}}, "other python"),
        ({"packages": "q"}, "packages"),
    ],
)
def test_nodes_that_are_not_alike_cannot_be_compared(make: Make, other: dict[str, Any], what: str) -> None:
    runner, _ = make(measured(), measured(), measured(**other))
    assert runner.machine({}).packages == "p"
    job = replace(JOB, backend="cuda")
    runner.run(job)
    with pytest.raises(MachineUnfitError, match=what):
        runner.run(job)


def test_what_is_simulated_does_not_mind_the_cards(make: Make) -> None:
    runner, _ = make(measured(), measured(gpus=[]))
    runner.machine({})
    assert runner.run(JOB).outcome == "fits"


def test_nodes_that_see_other_variables_are_refused(make: Make) -> None:
    runner, _ = make(measured(versions={"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"}))
    with pytest.raises(MachineUnfitError, match="PYTORCH_ALLOC_CONF"):
        runner.machine({"CUDA_VISIBLE_DEVICES": "1"})


def test_a_cluster_from_which_nothing_comes_back_is_refused(make: Make) -> None:
    runner, scheduler = make(*[lost("FAILED")] * 3)
    with pytest.raises(MachineUnfitError, match=r"no job comes back.*FAILED.*file system"):
        runner.machine({})
    assert [job.cancelled for job in scheduler.jobs] == [True] * 3
