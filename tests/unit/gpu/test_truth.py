"""The benchmark that holds the virtual card against a real one: nothing costs more than its own row."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import gpu_truth
from benchmarks.truth import history as history_part
from benchmarks.truth import measuring, timings
from benchmarks.truth.matrix import CASES
from benchmarks.truth.measuring import Bench
from oomscope.probe.result import Peak, ProbeResult
from oomscope.units import GiB, MiB
from tests.gpu import measure


def fitting() -> ProbeResult:
    peak = Peak(
        requested_bytes=GiB,
        allocated_bytes=GiB,
        active_bytes=GiB,
        reserved_bytes=2 * GiB,
        iteration=1,
        phase="backward",
        microbatch=0,
        site=None,
        event=3,
    )
    card = {"gpu": "NVIDIA H200", "limit_bytes": 100 * GiB, "non_torch_bytes": 7 * MiB, "other_process_bytes": 0}
    return ProbeResult(backend="cuda", outcome="fits", peak=peak, **card)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(card="virtual", folder=tmp_path, at_once=2, until=time.monotonic() + 60)


def test_a_measurement_that_raises_costs_its_own_row(bench: Bench, capsys):
    rows = bench.each(["1", "no", "2"], int, name=lambda item: f"case {item}")
    assert rows == [1, 2]
    said = "ValueError: invalid literal for int() with base 10: 'no'"
    assert bench.failed == [{"name": "case no", "failed": said}]
    bench.each([3], lambda item: item)
    assert capsys.readouterr().err.count("case no") == 1


def test_a_probe_ends_with_the_time(bench: Bench, monkeypatch):
    jobs = []
    monkeypatch.setattr(measuring.launch, "run", lambda job: jobs.append(job) or fitting())
    bench.measured(CASES[0].config(), "cuda")
    late = Bench(card="virtual", folder=bench.folder, at_once=2, until=time.monotonic() - 100)
    late.measured(CASES[0].config(), "virtual", demand=False)
    assert 70 < jobs[0].timeout_s <= 80
    assert (jobs[1].timeout_s, jobs[1].measure_demand) == (5.0, False)


def test_the_virtual_card_runs_beside_what_is_timed(bench: Bench, monkeypatch):
    monkeypatch.setattr(measuring.launch, "run", lambda job: fitting())
    document = timings.run(bench, timings.OFFLOAD[:2])
    assert [row["name"] for row in document["rows"]] == ["no offloading", "optimizer offload 0.25"]
    assert (document["failed"], "?" in document["table"]) == ([], True)


def found(commit: str | None, kind: str = "capacity") -> dict:
    culprit = {"culprit": {"commit": commit}} if commit else {}
    return {"range": "a..b", "answer": {**culprit, "first_bad": {"result": {"verdict": {"kind": kind}}}}}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([found("abc"), found("abc")], []),
        ([found("abc"), found("def")], ["a..b: abc, capacity against def, capacity"]),
        ([found("abc"), found("abc", "fragmentation")], ["a..b: abc, capacity against abc, fragmentation"]),
        ([found("abc"), {"range": "a..b", "said": "no git"}], ["a..b: abc, capacity against none, no verdict"]),
    ],
)
def test_searches_that_find_something_else_are_named(rows, told):
    assert history_part.deviations(rows) == told


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"table": "rows", "failed": [], "deviations": []}, 0),
        ({"table": "rows", "failed": [], "deviations": ["gqa: reserved +4.00 %"]}, 3),
        ({"table": "rows", "failed": [{"name": "gqa", "failed": "x"}], "deviations": ["gqa: reserved +4.00 %"]}, 1),
    ],
)
def test_the_exit_code_tells_what_failed_from_what_deviates(tmp_path: Path, monkeypatch, capsys, document, code):
    monkeypatch.setattr(gpu_truth.timings, "run", lambda *_: document)
    monkeypatch.setattr(
        gpu_truth.sys, "argv", ["gpu_truth.py", str(tmp_path), "--card", "virtual", "--part", "offload"]
    )
    assert gpu_truth.main() == code
    assert ("deviates: gqa: reserved +4.00 %" in capsys.readouterr().out) == bool(document.get("deviations"))


def test_a_part_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_truth.history, "run", lambda _bench: 1 // 0)
    monkeypatch.setattr(gpu_truth.timings, "run", lambda *_: {"table": "rows", "failed": []})
    words = [str(tmp_path), "--card", "virtual", "--part", "bisect", "--part", "offload"]
    monkeypatch.setattr(gpu_truth.sys, "argv", ["gpu_truth.py", *words])
    assert gpu_truth.main() == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["offload.json.gz"]


def test_the_search_of_the_card_leaves_the_allocator_as_much(tmp_path: Path, monkeypatch):
    def search(_bench, _repo, limit, backend):
        return {"range": history_part.RANGE, "backend": backend, "limit": limit, "wall_s": 1.0, "answer": {}}

    monkeypatch.setattr(history_part, "_search", search)
    monkeypatch.setattr(history_part.history, "build", lambda _repo: None)
    monkeypatch.setattr(measuring.launch, "run", lambda job: fitting())
    bench = Bench(card="cuda", folder=tmp_path, at_once=4, until=time.monotonic() + 60)
    document = history_part.run(bench)
    assert document["failed"] == []
    limit = history_part.LIMIT
    assert [row["limit"] for row in document["searches"]] == [limit - GiB + 7 * MiB, limit]


def test_rows_that_differ_between_two_cards_are_named():
    real = {"name": "gqa", "requested_bytes": 100, "allocated_bytes": 1, "outcome": "fits", "digest": "a"}
    assert measure.differences(real, dict(real)) == []
    virtual = {**real, "requested_bytes": 104, "outcome": "oom", "digest": "b"}
    told = ["requested_bytes 104 for 100 (+4.00 %)", "outcome oom for fits", "requests"]
    assert measure.differences(real, virtual) == told
