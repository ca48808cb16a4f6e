"""A search between two configuration files, with a probe whose bytes are a formula of the configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oomscope.bisect.change_bisect import bisect_configs
from oomscope.bisect.requests import ConfigRequest
from oomscope.bisect.results.result import BisectResult, KeysCulprit
from oomscope.bisect.run.state_dirs import StateDirs
from oomscope.bisect.vcs.ranges import FileRange
from oomscope.config.load import load_config
from oomscope.probe.job import BundledTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes
from tests.unit.bisect.probe_results import AVAILABLE, error, fits, oom

GOOD = """\
preset: gpt-tiny
model: {position_embedding_type: rope}
data: {seq_length: 100, micro_batch_size: 1, num_microbatches: 1}
optimizer: {lr: 0.001, clip_grad: 1.0}
probe: {backend: virtual}
"""

GOOD_DATA = {"data.seq_length": 100, "data.micro_batch_size": 1, "data.num_microbatches": 1}


def wanted(config: dict[str, Any]) -> int:
    """Bytes: sequence times batch, plus what the optimizer keeps."""
    size: int = config["data"]["seq_length"] * config["data"]["micro_batch_size"]
    return size + (300 if config["optimizer"]["optimizer"] == "adam" else 100)


class FormulaProbe:
    """Measures :func:`wanted`; remembers which configurations it ran."""

    def __init__(self, formula: Callable[[dict[str, Any]], int | str] = wanted) -> None:
        self.formula = formula
        self.ran: list[dict[str, Any]] = []

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        assert isinstance(job.target, BundledTarget)
        self.ran.append(job.target.config)
        size = self.formula(job.target.config)
        if isinstance(size, str):
            return error("step", size)
        world = {"rank": job.rank, "world_size": job.world_size, "pipeline_stages": 1 if job.world_size == 1 else 2}
        return fits(size, **world) if size <= AVAILABLE else oom(live=900, requested=100, demand=size)


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.good, self.bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
        self.good.write_text(GOOD)
        self.state_dirs = StateDirs(tmp_path / "state")
        self.probe = FormulaProbe()

    def bisect(self, changed: str, /, **options: Any) -> BisectResult:
        self.bad.write_text(changed)
        request = ConfigRequest(range=FileRange(good=self.good, bad=self.bad), state_dirs=self.state_dirs, **options)
        result = bisect_configs(request, probe=self.probe, environment={})
        json.dumps(result.to_json())
        return result


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def culprit(result: BisectResult) -> KeysCulprit:
    assert result.outcome == "culprit", result.message
    assert isinstance(result.culprit, KeysCulprit)
    return result.culprit


def live(delta: Bytes | None) -> int | None:
    return None if delta is None else delta.requested_bytes


def test_one_key_at_fault_among_others(world: World) -> None:
    result = world.bisect(
        GOOD.replace("seq_length: 100", "seq_length: 800").replace(
            "lr: 0.001, clip_grad: 1.0", "lr: 0.1, clip_grad: 2.0"
        )
    )
    found = culprit(result)
    assert [(key.key, key.good, key.bad, live(key.delta)) for key in found.keys] == [("data.seq_length", 100, 800, 700)]
    assert live(found.interaction) == 0
    assert sum(row.delta_bytes for row in found.sites) == 700
    assert (result.candidates, result.considered) == (3, 3)
    assert len(result.probes) <= 2 + 2 + 1


def test_keys_that_only_interact(world: World) -> None:
    bad = GOOD.replace("seq_length: 100, micro_batch_size: 1", "seq_length: 300, micro_batch_size: 3")
    result = world.bisect(bad.replace("lr: 0.001", "lr: 0.1"))
    found = culprit(result)
    assert {key.key: live(key.delta) for key in found.keys} == {
        "data.seq_length": 200,
        "data.micro_batch_size": 200,
    }
    assert live(found.delta) == 800
    assert live(found.interaction) == 400
    labels = {row.label: live(row.delta) for row in result.steps}
    assert labels == {"data.seq_length": 200, "data.micro_batch_size": 200, "only together": 400, "all other keys": 0}


def test_a_key_that_is_bad_by_itself_is_the_answer_where_another_hides_it(world: World) -> None:
    """SGD saves what makes the longer sequence fit; the larger batch undoes that."""
    saves = {"adam": 0, "sgd": 500}

    def formula(config: dict[str, Any]) -> int:
        data = config["data"]
        grown = 800 * (data["seq_length"] > 100) + 450 * (data["micro_batch_size"] > 1)
        return 500 + grown - saves[config["optimizer"]["optimizer"]]

    world.probe = FormulaProbe(formula)
    bad = GOOD.replace("seq_length: 100, micro_batch_size: 1", "seq_length: 300, micro_batch_size: 3")
    result = world.bisect(bad.replace("optimizer: {", "optimizer: {optimizer: sgd, "))
    assert {key.key: live(key.delta) for key in culprit(result).keys} == {"data.seq_length": 800}
    assert live(culprit(result).interaction) == 0
    assert live(result.change) == 800


@pytest.mark.parametrize("alone", ["data.seq_length", "data.micro_batch_size", "data.num_microbatches"])
def test_of_three_keys_one_that_is_bad_by_itself_is_the_answer(world: World, alone: str) -> None:
    """Bad are one of the keys by itself and all three, but no two: only the measurements of each key show it."""
    keys = ("data.seq_length", "data.micro_batch_size", "data.num_microbatches")

    def formula(config: dict[str, Any]) -> int:
        changed = [key for key in keys if config["data"][key.removeprefix("data.")] != GOOD_DATA[key]]
        return 1300 if changed == [alone] or len(changed) == len(keys) else 500

    world.probe = FormulaProbe(formula)
    bad = GOOD.replace(
        "seq_length: 100, micro_batch_size: 1, num_microbatches: 1",
        "seq_length: 300, micro_batch_size: 3, num_microbatches: 2",
    )
    assert [key.key for key in culprit(world.bisect(bad)).keys] == [alone]


PARALLEL = """\
preset: gpt-tiny
model: {position_embedding_type: rope}
data: {seq_length: 100, micro_batch_size: 1}
optimizer: {lr: 0.001}
parallel: {tensor_model_parallel_size: 1, sequence_parallel: false}
probe: {backend: virtual}
"""


def test_a_key_that_is_valid_only_with_another_is_never_probed_alone(world: World) -> None:
    """Sequence parallelism needs tensor parallelism; here it is sequence parallelism that costs."""
    world.good.write_text(PARALLEL)
    world.probe = FormulaProbe(lambda config: 1500 if config["parallel"]["sequence_parallel"] else 500)
    bad = PARALLEL.replace("size: 1, sequence_parallel: false", "size: 2, sequence_parallel: true")
    result = world.bisect(bad.replace("lr: 0.001", "lr: 0.1").replace("batch_size: 1", "batch_size: 2"))
    found = culprit(result)
    assert {key.key: live(key.delta) for key in found.keys} == {
        "parallel.tensor_model_parallel_size": 0,
        "parallel.sequence_parallel": 1000,
    }
    for config in world.probe.ran:
        assert config["parallel"]["tensor_model_parallel_size"] == 2 or not config["parallel"]["sequence_parallel"]


def test_the_commands_repeat_the_probes(world: World) -> None:
    bad = GOOD.replace("seq_length: 100", "seq_length: 800") + "recompute: {recompute_granularity: null}\n"
    bad = bad.replace("lr: 0.001", "lr: 0.1") + "allocator: {conf: 'expandable_segments:True,max_split_size_mb:64'}\n"
    world.probe = FormulaProbe(lambda config: wanted(config) + (500 if config["allocator"]["conf"] else 0) - 300)
    result = world.bisect(bad)
    assert result.first_bad is not None
    (command,) = result.first_bad.commands
    oomscope, probe, file, *overrides = shlex.split(command)
    assert (oomscope, probe, file) == ("oomscope", "probe", str(world.good))
    repeated = load_config(world.good, overrides).config
    assert repeated.model_dump(mode="json") in world.probe.ran
    assert {override.partition("=")[0] for override in overrides} == {
        key.key.partition("/")[0] for key in culprit(result).keys
    }


@pytest.mark.parametrize(("rank", "says_it"), [("first", True), ("worst", False), ("1", False)])
def test_that_nothing_is_at_fault_names_the_ranks_that_were_not_measured(
    world: World, rank: str, says_it: bool
) -> None:
    staged = GOOD + "parallel: {pipeline_model_parallel_size: 2}\n"
    world.good.write_text(staged)
    result = world.bisect(staged.replace("lr: 0.001", "lr: 0.1"), overrides=(f"probe.rank={rank}",))
    assert result.outcome == "no_culprit"
    said = "the bad end is good: fits, 600 B left"
    left_out = "; only rank 0 of 2 was measured; --rank worst measures every distinct one"
    assert result.message == said + left_out * says_it


def with_deadline(world: World, probes: int) -> BisectResult:
    """Search where three keys differ, two of which interact, with time for that many probes."""
    now = [0.0]
    inner = world.probe

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        now[0] += 60
        return inner(job, progress)

    bad = GOOD.replace("seq_length: 100, micro_batch_size: 1", "seq_length: 300, micro_batch_size: 3")
    world.bad.write_text(bad.replace("backend: virtual", "backend: virtual, seed: 7"))
    request = ConfigRequest(
        range=FileRange(good=world.good, bad=world.bad),
        state_dirs=world.state_dirs,
        use_cache=False,
        deadline_s=60 * probes,
    )
    return bisect_configs(request, probe=probe, environment={}, clock=lambda: now[0])


def test_a_deadline_leaves_the_smallest_set_that_is_known_to_be_bad(world: World) -> None:
    first, last = with_deadline(world, 2), with_deadline(world, 4)
    assert (first.outcome, last.outcome) == ("suspects", "suspects")
    assert "deadline" in last.message
    assert last.is_out_of_time
    assert len(first.suspects) == 3
    assert {suspect.key for suspect in last.suspects} == {"data.seq_length", "data.micro_batch_size"}
    assert last.suspects[0].subject in {"100 → 300", "1 → 3"}
    assert live(last.change) == 800
    assert sum(row.delta_bytes for row in last.sites) == 800
    json.dumps(last.to_json())


def test_the_rows_sum_to_the_difference_also_where_a_key_cannot_be_measured_alone(world: World) -> None:
    """Of two keys that interact one does not run without the other."""

    def formula(config: dict[str, Any]) -> int | str:
        data = config["data"]
        if data["micro_batch_size"] == 3 and data["seq_length"] == 100:
            return "shapes"
        return wanted(config)

    world.probe = FormulaProbe(formula)
    result = world.bisect(GOOD.replace("seq_length: 100, micro_batch_size: 1", "seq_length: 300, micro_batch_size: 3"))
    rows = {row.label: live(row.delta) for row in result.steps}
    assert rows == {"data.seq_length": 200, "only together, or not measured by itself": 600}
    assert culprit(result).interaction is None


def test_settings_of_the_allocator_are_keys_of_their_own(world: World) -> None:
    world.good.write_text(GOOD + "allocator: {conf: 'garbage_collection_threshold:0.8'}\n")
    world.probe = FormulaProbe(lambda config: 1500 if "max_split_size_mb:64" in config["allocator"]["conf"] else 500)
    conf = "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8"
    result = world.bisect(GOOD.replace("lr: 0.001", "lr: 0.1") + f"allocator: {{conf: '{conf}'}}\n")
    found = culprit(result)
    assert [(key.key, key.good, key.bad) for key in found.keys] == [("allocator.conf/max_split_size_mb", None, "64")]
    assert result.candidates == 3
    assert result.first_bad is not None
    (command,) = result.first_bad.commands
    assert shlex.split(command)[-1] == "allocator.conf=garbage_collection_threshold:0.8,max_split_size_mb:64"
    assert load_config(world.good, shlex.split(command)[3:]).config.model_dump(mode="json") in world.probe.ran
