"""What was lost is tried again where nobody else writes, and what came of a probe is what came of the last try."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SilentReporter
from oomscope.bisect.run.cache import ResultCache
from oomscope.bisect.run.experiment import Deadline, Experiment
from oomscope.bisect.run.identity import Content
from oomscope.bisect.run.prober import Prober, Question
from oomscope.bisect.run.runner import LocalRunner, SlotRunner
from oomscope.bisect.search.measured import Measured
from oomscope.probe.job import CommandTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import Failure, ProbeResult
from tests.unit.bisect.probe_results import fits

LOST = ProbeResult(
    backend="virtual", outcome="error", failure=Failure(kind="lost", message="job 7 ended", detail="log")
)


class Losing(LocalRunner):
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
    return SlotRunner(runner, Deadline(None)).measure(experiment, job, 0, lambda _progress: None, threading.Event())


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


JOB = ProbeJob(target=HarnessTarget(harness="/h.py", repo="/clone"), backend="virtual")


@dataclass
class Searches:
    """One question in search after search, each with a prober of its own and all with one cache on disk."""

    results: Path
    missing: tuple[str, ...] = ()
    probed: list[int] = field(default_factory=list)

    def probe(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        """Play a harness that makes its batch as large as the environment says."""
        self.probed.append(int(os.environ["BATCH"]))
        return fits(self.probed[-1])

    def ask(self) -> Prober:
        experiment = Experiment(job=JOB, content=Content(tree="1", harness="2"), lay_out=lambda _place: self.missing)
        here = LocalRunner(run=lambda job, progress, **_: self.probe(job, progress))
        prober = Prober(runner=here, bad=Bad(), reporter=SilentReporter(), cache=ResultCache(self.results))
        for _ in range(2):
            record, _ = prober.ask(Question(role="search", name="a commit"), experiment)
            assert record.peak is not None
            assert record.peak.requested_bytes == int(os.environ["BATCH"])
        return prober


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    monkeypatch.setenv("BATCH", "8")
    return Searches(tmp_path)


def test_an_incomplete_checkout_is_measured_again_in_the_next_search(searches: Searches) -> None:
    searches.missing = ("submodule lib is empty",)
    assert searches.ask().notes == ["submodule lib is empty"]
    assert searches.probed == [8]
    searches.missing = ()
    assert searches.ask().notes == []
    assert searches.probed == [8, 8]
    searches.ask()
    assert searches.probed == [8, 8], "the complete one is kept"


def test_a_variable_that_the_harness_reads_is_asked_for_anew(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches.ask()
    monkeypatch.setenv("BATCH", "16")
    searches.ask()
    assert searches.probed == [8, 16]
    monkeypatch.setenv("BATCH", "8")
    searches.ask()
    assert searches.probed == [8, 16], "both are kept"


def test_notes_that_differ_in_their_example_alone_are_one() -> None:
    prober = Prober(runner=LocalRunner(), bad=Bad(), reporter=SilentReporter())
    first = "files that the partial clone left out: 1 (such as a.png)"
    for text in (first, "files that the partial clone left out: 1 (such as b.png)", "another", "another"):
        prober.note(text)
    assert prober.notes == [first, "another"]
