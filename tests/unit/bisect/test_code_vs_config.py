"""Code and configuration, each old or new, through real clones with a probe that reads both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from oomscope.bisect.code_vs_config import bisect_code_vs_config
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.result import BisectResult, CommitCulprit, KeysCulprit
from oomscope.probe.job import HarnessTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect import worlds
from tests.unit.bisect.probe_results import error
from tests.unit.bisect.repos import fingerprint
from tests.unit.bisect.worlds import measure

PATH = "conf/train.yaml"


def run(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    """Bytes: the number in ``scale.txt`` times width and batch of the configuration."""
    assert isinstance(job.target, HarnessTarget)
    folder = Path(job.target.repo)
    content = (folder / PATH).read_text()
    scale = (folder / "scale.txt").read_text().strip()
    if content.startswith("not yaml"):
        return measure(int(scale) * int(content.split()[-1]))
    config = yaml.safe_load(content)
    if int(scale) < config.get("needs", 0):
        return error("step", "the configuration asks for what is not there")
    return measure(int(int(scale) * config["model"]["width"] * (config.get("batch") or 1)))


class World(worlds.World):
    def commit(self, scale: object, config: str) -> str:
        return self.repo.commit(f"{scale} {config}", {"scale.txt": f"{scale}\n", PATH: config})

    def search(self, good: str, path: str = PATH, **options: object) -> BisectResult:
        before = fingerprint(self.repo.path)
        result = bisect_code_vs_config(self.request(good, **options), path, probe=run, environment={})
        assert fingerprint(self.repo.path) == before
        assert not list(self.state_dirs.checkouts.iterdir())
        json.dumps(result.to_json())
        return result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def config(width: int, batch: int, more: str = "") -> str:
    return f"model: {{width: {width}}}\nbatch: {batch}\nlr: {width + batch}\n{more}"


def guilty(result: BisectResult) -> str:
    assert result.square is not None, result.message
    return result.square.guilty


def keys(culprit: object) -> list[str]:
    assert isinstance(culprit, KeysCulprit)
    return [change.key for change in culprit.keys]


def test_the_code_alone(world: World) -> None:
    good = world.commit(1, config(10, 10))
    world.commit(2, config(10, 10))
    culprit = world.commit(12, config(10, 10))
    world.commit(12, config(10, 9))
    result = world.search(good)
    assert guilty(result) == "code"
    assert isinstance(result.culprit, CommitCulprit)
    assert result.culprit.commit == culprit
    assert result.message.startswith("the code is at fault")
    assert result.axis == "both"


def test_the_configuration_alone(world: World) -> None:
    good = world.commit(1, config(10, 10))
    world.commit(2, config(10, 10))
    world.commit(2, config(101, 11))
    result = world.search(good)
    assert guilty(result) == "config"
    assert keys(result.culprit) == ["model.width"]
    assert isinstance(result.culprit, KeysCulprit)
    assert result.culprit.delta.requested_bytes == 1010 - 100, "with the old code"
    assert result.square is not None
    assert result.square.interaction is not None
    assert result.square.interaction.requested_bytes == 2 * 1111 - 200 - 1111 + 100


@pytest.mark.parametrize(
    ("before", "after", "texts", "command"),
    [
        ("", "batch: 11\n", ("(absent)", "11"), f"# set batch=11 in {PATH}"),
        ("batch: null\n", "batch: 11\n", ("null", "11"), f"# set batch=11 in {PATH}"),
        ("batch: 0.1\n", "", ("0.1", "(absent)"), f"# remove batch from {PATH}"),
    ],
)
def test_a_key_that_one_file_lacks_is_distinguished_from_null(
    world: World, before: str, after: str, texts: tuple[str, str], command: str
) -> None:
    good = world.commit(100, f"model: {{width: 1}}\nlr: 1\n{before}")
    world.commit(100, f"model: {{width: 1}}\nlr: 1\n{after}")
    result = world.search(good, bad=Bad.parse("requested>50" if before.endswith("0.1\n") else "requested>500"))
    assert isinstance(result.culprit, KeysCulprit), result.message
    assert [change.texts for change in result.culprit.keys] == [texts]
    assert result.first_bad is not None
    assert command in result.first_bad.commands


def test_only_both_together(world: World) -> None:
    good = world.commit(1, config(10, 10))
    world.commit(2, config(10, 10))
    culprit = world.commit(4, config(10, 10))
    world.commit(4, config(30, 10))
    result = world.search(good)
    assert guilty(result) == "combination"
    assert isinstance(result.culprit, CommitCulprit)
    assert result.culprit.commit == culprit
    assert keys(result.also) == ["model.width"]


def test_a_corner_that_cannot_be_tested_leaves_it_open(world: World) -> None:
    """The new configuration means nothing to the old code."""
    good = world.commit(1, config(10, 10))
    world.commit(2, f"{config(100, 10)}needs: 2\n")
    result = world.search(good)
    assert guilty(result) == "unknown"
    assert (result.outcome, result.culprit) == ("inconclusive", None)
    assert "it is unknown" in result.message
