"""A repository, a harness, a place for state, and a probe that only reads a number out of the checkout."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult, CommitCulprit, ProbeRecord
from oomscope.bisect.run.experiment import Deadline, Workplace
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.targets.subjects import OwnCode, own_code_of
from oomscope.bisect.vcs.checkouts import Checkout
from oomscope.bisect.vcs.ranges import RevisionRange
from oomscope.bisect.vcs.repository import Repository
from oomscope.config.load import load_preset
from oomscope.config.schema import Config
from oomscope.probe.job import CheckoutTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import AVAILABLE, error, fits, oom
from tests.unit.bisect.repos import Repo

SETTINGS = load_preset("gpt-tiny", ["probe.backend=virtual"]).config


def harness_code(path: Path, settings: Config = SETTINGS, overrides: tuple[str, ...] = ()) -> OwnCode:
    """What a harness measures of each commit."""
    return own_code_of(HarnessTarget(harness=str(path), repo=""), settings, overrides)


def measure(size: int) -> ProbeResult:
    return fits(size) if size <= AVAILABLE else oom(live=900, requested=100, demand=size)


class FakeProbe:
    """Reads ``size.txt`` of the checkout: bytes that the run wants, or a failure's kind. Remembers what it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.jobs: list[ProbeJob] = []

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        assert isinstance(job.target, CheckoutTarget)
        content = (Path(job.target.repo) / "size.txt").read_text().strip()
        self.ran.append(content)
        self.jobs.append(job)
        if progress is not None:
            progress(Progress(stage="step"))
        if content.isdigit():
            return measure(int(content))
        return error(content, f"{job.target.repo}/train.py:1 {content}")  # type: ignore[arg-type]


class Listener:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.plan: SearchPlan | None = None
        self.records: list[ProbeRecord] = []
        self.names: list[str] = []

    def planned(self, plan: SearchPlan) -> None:
        self.plan = plan

    def probing(self, name: str, number: int) -> None:
        assert number == len(self.records) + 1
        self.names.append(name)

    def at_work(self, running) -> None:
        pass

    def probed(self, record: ProbeRecord) -> None:
        self.records.append(record)


class World:
    """A repository, a harness, a place for state, and a probe."""

    def __init__(self, tmp_path: Path) -> None:
        self.repo = Repo(tmp_path / "repo")
        self.harness = tmp_path / "harness.py"
        self.harness.write_text("# drives it\n")
        self.state_dirs = StateDirs(tmp_path / "state")
        self.probe = FakeProbe()
        self.listener = Listener()

    def sizes(self, sizes: Sequence[int | str]) -> list[str]:
        return self.repo.import_line("size.txt", [f"{size}\n" for size in sizes], "commit {0}")

    def request(self, good: str, **options: Any) -> CommitRequest:
        options = {"repo": self.repo.path, "subject": harness_code(self.harness, SETTINGS), **options}
        return CommitRequest(range=RevisionRange(good=good, bad="HEAD"), state_dirs=self.state_dirs, **options)

    def bisect(self, good: str, **options: object) -> BisectResult:
        result = bisect_commits(self.request(good, **options), probe=self.probe, reporter=self.listener, environment={})
        assert not list(self.state_dirs.checkouts.iterdir()), "no clone is left"
        return result


def culprit(result: BisectResult) -> CommitCulprit:
    assert result.outcome == "culprit", result.message
    assert isinstance(result.culprit, CommitCulprit)
    return result.culprit


class Clock:
    """Goes on by a minute at each probe."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def with_clock(world: World, good: str, deadline_s: float, probe_s: float = 60.0, **options: object) -> BisectResult:
    clock = Clock()

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        if job.timeout_s < probe_s:
            clock.now += job.timeout_s
            return error("timeout")
        clock.now += probe_s
        return world.probe(job, progress)

    request = world.request(good, deadline_s=deadline_s, **options)
    return bisect_commits(request, probe=probe, environment={}, clock=clock)


@dataclass
class Flaky:
    """A probe of ``size.txt`` that takes a good commit for bad, or a bad one for good, with a chance."""

    chance: float
    seed: int = 0
    spread: int = 0
    backend: str = "virtual"
    ran: list[int] = field(default_factory=list)
    wrong: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        assert isinstance(job.target, CheckoutTarget)
        content = (Path(job.target.repo) / "size.txt").read_text().strip()
        if not content.isdigit():
            return error("import", content)
        size = int(content)
        self.ran.append(size)
        if self.rng.random() < self.chance:
            self.wrong += 1
            size += 1000 if size <= AVAILABLE else -1000
        if self.spread:
            size += round(self.rng.gauss(0, self.spread))
        return replace(measure(size), backend=self.backend)  # type: ignore[arg-type]


def show(repository: Repository, path: Path, revision: str = "HEAD") -> Workplace:
    """Lay ``revision`` out in the clone ``path``."""
    Checkout(repository, path).show(repository.resolve(revision))
    return workplace(path)


def workplace(path: Path, *, seconds: float | None = None, stop: threading.Event | None = None) -> Workplace:
    return Workplace(
        directory=path,
        environment={"PATH": os.environ["PATH"]},
        deadline=Deadline.after(seconds),
        stop=stop or threading.Event(),
    )
