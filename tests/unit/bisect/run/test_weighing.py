"""Searches over keys, corners and tries for a good end find the right answer though single answers are wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from oomscope.bisect.change_bisect import bisect_configs
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import ConfigRequest
from oomscope.bisect.results.result import BisectResult, KeysCulprit
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.vcs.ranges import FileRange, RevisionRange
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import AVAILABLE, error
from tests.unit.bisect.worlds import Flaky, World, measure

GOOD = """\
preset: gpt-tiny
data: {seq_length: 100, micro_batch_size: 1, num_microbatches: 1}
optimizer: {lr: 0.001, clip_grad: 1.0}
probe: {backend: %s}
"""
BAD = """\
preset: gpt-tiny
data: {seq_length: 100, micro_batch_size: 16, num_microbatches: 2}
optimizer: {lr: 0.002, clip_grad: 2.0}
probe: {backend: %s}
"""
GUILTY = "data.micro_batch_size"


@dataclass
class Keys:
    """A probe of a configuration that is wrong now and then, and whose bytes differ each time."""

    chance: float = 0.0
    seed: int = 0
    spread: int = 0
    backend: str = "virtual"
    wrong: int = 0
    crashes: bool = False
    ran: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def __call__(self, job: ProbeJob, _progress: object = None, /) -> ProbeResult:
        assert isinstance(job.target, BundledTarget)
        size = job.target.config["data"]["seq_length"] * job.target.config["data"]["micro_batch_size"]
        self.ran.append(size)
        if self.crashes and len(self.ran) > 1:
            return error("crash")
        if self.rng.random() < self.chance:
            self.wrong += 1
            size = AVAILABLE * 3 - size
        if self.spread:
            size += self.rng.randrange(self.spread)
        return replace(measure(size), backend=self.backend)  # type: ignore[arg-type]


def keys(tmp_path: Path, probe: Keys, noise: Noise | None = None, backend: str = "virtual") -> BisectResult:
    files = []
    for name, text in (("good.yaml", GOOD), ("bad.yaml", BAD)):
        (tmp_path / name).write_text(text % backend)
        files.append(tmp_path / name)
    request = ConfigRequest(
        range=FileRange(good=files[0], bad=files[1]),
        state_dirs=StateDirs(tmp_path / "state"),
        noise=noise,
        use_cache=False,
    )
    return bisect_configs(request, probe=probe, environment={})


def guilty(result: BisectResult) -> list[str]:
    assert isinstance(result.culprit, KeysCulprit), result.message
    return [change.key for change in result.culprit.keys]


def test_keys_are_found_although_probes_are_wrong(tmp_path: Path) -> None:
    plain = [keys(tmp_path, Keys(0.15, seed)) for seed in range(4)]
    assert sum(isinstance(each.culprit, KeysCulprit) and guilty(each) == [GUILTY] for each in plain) < 4
    probes = [Keys(0.15, seed, spread=9) for seed in range(2)]
    for probe in probes:
        result = keys(tmp_path, probe, Noise())
        assert guilty(result) == [GUILTY]
        assert sum("each until its answer was" in note for note in result.notes) == 1
        assert result.last_good is not None
        assert result.last_good.result.outcome == "fits"
        assert result.culprit is not None
        assert sum(row.delta_bytes for row in result.sites) == result.culprit.delta.requested_bytes
        ends = {each.role: each for each in result.probes}
        assert ends["good end"].keys == ()
        assert len({(each.keys, each.repeat) for each in result.probes}) == len(result.probes)
    assert sum(probe.wrong for probe in probes) > 0


def test_a_good_end_is_accepted_when_several_probes_agree(world: World) -> None:
    for size in (500, 500, 1500, 1500, 1500):
        world.repo.minutes += 2 * 24 * 60 - 1
        world.repo.commit("two days", {"size.txt": str(size), "day": str(world.repo.minutes)})
    request = replace(world.request("", noise=Noise(), use_cache=False), range=RevisionRange(good="", bad="HEAD"))
    result = bisect_commits(request, probe=Flaky(0.1, 3), environment={})
    sought = [each for each in result.probes if each.role == "good end sought"]
    assert result.good == sought[-1].commit
    assert world.repo.git("show", f"{result.good}:size.txt") == "500"
    assert sum(each.commit == result.good for each in sought) > 1
