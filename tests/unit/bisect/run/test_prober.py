"""A question is answered anew when anything that can change the answer has changed, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SilentReporter
from oomscope.bisect.run.cache import ResultCache
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.identity import Content
from oomscope.bisect.run.prober import Prober, Question
from oomscope.bisect.run.runner import Here
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import fits

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
        here = Here(run=lambda job, progress, **_: self.probe(job, progress))
        prober = Prober(runner=here, bad=Bad(), reporter=SilentReporter(), cache=ResultCache(self.results))
        for _ in range(2):
            record, _ = prober.ask(Question(role="search", name="a commit"), experiment)
            assert record.bytes is not None
            assert record.bytes.requested_bytes == int(os.environ["BATCH"])
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


def test_another_terminal_asks_for_nothing_anew(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    searches.ask()
    monkeypatch.setenv("COLUMNS", "61")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    searches.ask()
    assert searches.probed == [8]
