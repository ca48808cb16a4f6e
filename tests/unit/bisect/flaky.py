"""A probe that is wrong now and then, as on a card where others hold memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import AVAILABLE, error
from tests.unit.bisect.worlds import measure


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
        assert isinstance(job.target, HarnessTarget)
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
