"""What was lost is tried again where nobody else writes, and what came of a probe is what came of the last try."""

from __future__ import annotations

import threading
from pathlib import Path

from oomscope.bisect.run.experiment import Deadline, Experiment
from oomscope.bisect.run.runner import Here, SlotRunner
from oomscope.bisect.search.measured import Measured
from oomscope.probe.job import CommandTarget, ProbeJob
from oomscope.probe.result import Failure, ProbeResult
from tests.unit.bisect.probe_results import fits

LOST = ProbeResult(
    backend="virtual", outcome="error", failure=Failure(kind="lost", message="job 7 ended", detail="log")
)


class Losing(Here):
    """A runner elsewhere that loses the first probes, whose far ends go on and write into their checkouts."""

    def __init__(self, losses: int) -> None:
        super().__init__(run=self.lose)
        self.losses, self.retries, self.reuses_places = losses, 2, False
        self.found: list[list[str]] = []
        self.places: list[str] = []

    def lose(self, job: ProbeJob, progress: object = None, /, *, stop: threading.Event | None = None) -> ProbeResult:
        assert isinstance(job.target, CommandTarget)
        place = Path(job.target.repo)
        self.places.append(str(place))
        self.found.append(sorted(file.name for file in place.iterdir()))
        (place / "of the job").touch()
        return LOST if len(self.places) <= self.losses else fits(7)


def measured(runner: Losing, tmp_path: Path) -> Measured:
    """Measure the command of a checkout with one file."""

    def lay_out(place: Path) -> tuple[str, ...]:
        place.mkdir()
        (place / "file").touch()
        return ()

    job = ProbeJob(target=CommandTarget(repo=str(tmp_path / "clone"), command="true"), backend="virtual")
    experiment = Experiment(job=job, lay_out=lay_out)
    return SlotRunner(runner, Deadline(None)).begin(experiment, job)(0)(lambda _progress: None, threading.Event())


def test_a_try_after_a_lost_one_has_a_checkout_of_its_own(tmp_path: Path) -> None:
    runner = Losing(losses=2)
    assert measured(runner, tmp_path).answer == fits(7)
    assert runner.found == [["file"]] * 3
    assert len(set(runner.places)) == 3
    assert not list(tmp_path.iterdir())


def test_after_some_tries_it_is_lost(tmp_path: Path) -> None:
    runner = Losing(losses=9)
    failure = measured(runner, tmp_path).answer.failure  # type: ignore[union-attr]
    assert failure == Failure(kind="lost", message="each of 3 tries was lost; the last, job 7 ended", detail="log")
    assert len(runner.places) == 3
