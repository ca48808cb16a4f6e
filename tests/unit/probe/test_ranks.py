from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.config.schema import Config, ModelConfig, ParallelConfig
from oomscope.errors import UsageError
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.ranks import chosen_ranks, probe_ranks, ranks_left_out, summary_of, worst_of
from oomscope.probe.result import Failure, Peak, ProbeResult
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import GiB

CONFIG = Config(
    model=ModelConfig(num_layers=8, hidden_size=64, num_attention_heads=8),
    parallel=ParallelConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=4),
)


def result(rank: int, outcome: str = "fits", *, reserved: int = 0, demand: int | None = None, live: int = 0):
    peak = Peak(
        requested_bytes=reserved,
        allocated_bytes=reserved,
        active_bytes=reserved,
        reserved_bytes=reserved,
        iteration=0,
        phase="forward",
        microbatch=0,
        site=None,
        event=0,
    )
    verdict = Verdict(
        kind="capacity",
        headline="",
        requested_bytes=GiB,
        live_requested_bytes=live,
        available_bytes=80 * GiB,
        reserved_bytes=reserved,
    )
    return ProbeResult(
        backend="virtual",
        outcome=outcome,
        rank=rank,
        available_bytes=80 * GiB,
        peak=None if outcome == "error" else peak,
        verdict=verdict if outcome == "oom" else None,
        demand_bytes=demand,
        failure=Failure(kind="crash", message="boom") if outcome == "error" else None,
    )


@pytest.mark.parametrize(
    ("choice", "ranks"), [("first", [0]), ("last", [7]), ("worst", [0, 2, 4, 6]), (0, [0]), (5, [5])]
)
def test_which_ranks_are_probed(choice, ranks: list[int]) -> None:
    assert chosen_ranks(choice, CONFIG) == ranks


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(UsageError, match=f"no rank {rank}"):
        chosen_ranks(rank, CONFIG)


WORST = "only rank 0 of 8 was measured; --rank worst measures every distinct one"
ANOTHER = "only rank 0 of 8 was measured; --rank N measures another"


@pytest.mark.parametrize(
    ("rank", "fields", "said"),
    [
        (0, {"world_size": 8, "pipeline_stages": 4}, WORST),
        (0, {"world_size": 8}, ANOTHER),
        (0, {"world_size": 8, "pipeline_stages": 1}, ""),
        (0, {"world_size": 8, "pipeline_stages": 4, "ranks": (summary_of(result(0)), summary_of(result(2)))}, ""),
        (7, {"world_size": 8, "pipeline_stages": 4}, ""),
        (0, {"world_size": 1}, ""),
    ],
)
def test_ranks_that_may_need_more_and_were_not_measured_are_reported(rank: int, fields: dict, said: str) -> None:
    assert ranks_left_out(replace(result(rank), **fields)) == said


def test_an_error_is_worst_then_out_of_memory_then_the_least_margin() -> None:
    fits, tight = result(0, reserved=10 * GiB), result(2, reserved=70 * GiB)
    oom, error = result(4, "oom"), result(6, "error")
    assert worst_of([fits, tight]) is tight
    assert worst_of([fits, oom, tight]) is oom
    assert worst_of([fits, oom, error]) is error
    assert worst_of([fits, result(1, reserved=10 * GiB)]) is fits


def test_the_worst_result_lists_all_ranks() -> None:
    results = {0: result(0, reserved=10 * GiB), 2: result(2, reserved=70 * GiB), 4: result(4, "error")}
    job = ProbeJob(target=BundledTarget(config={}))
    worst = probe_ranks(job, [0, 2, 4], lambda job: results[job.rank])
    assert worst.rank == 4
    assert [(row.rank, row.outcome, row.margin_bytes) for row in worst.ranks] == [
        (0, "fits", 70 * GiB),
        (2, "fits", 10 * GiB),
        (4, "error", None),
    ]
    assert worst.ranks[2].message == "boom"


def test_the_worst_ranks_snapshot_is_the_one_that_stays(tmp_path: Path) -> None:
    def probe(job: ProbeJob) -> ProbeResult:
        Path(job.snapshot_path).write_text(f"rank {job.rank}")
        found = result(job.rank, reserved=(10 + job.rank) * GiB)
        return ProbeResult.from_json(found.to_json() | {"snapshot": job.snapshot_path})

    path = tmp_path / "out.pickle"
    worst = probe_ranks(ProbeJob(target=BundledTarget(config={}), snapshot_path=str(path)), [0, 4, 2], probe)
    assert (worst.rank, worst.snapshot) == (4, str(path))
    assert path.read_text() == "rank 4"
    assert list(tmp_path.iterdir()) == [path]
