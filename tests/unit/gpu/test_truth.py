"""The benchmark that holds the virtual card against a real one: nothing costs more than its own row."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu_truth
from benchmarks.truth import history as history_part
from benchmarks.truth import measuring, timings
from benchmarks.truth.matrix import CASES
from benchmarks.truth.measuring import Bench
from oomscope.probe.result import Failure, ProbeResult
from oomscope.units import GiB, MiB, parse_size

from .results import fitting


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(card="virtual", folder=tmp_path, at_once=2, until=time.monotonic() + 60)


def test_what_cannot_be_kept_on_the_way_ends_nothing(bench: Bench, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "FLUSH_S", -1.0)
    assert bench.each([1, 2], lambda item: item, keep=lambda _rows: 1 // 0) == [1, 2]
    assert "not kept on the way: ZeroDivisionError" in capsys.readouterr().err


def test_a_measurement_that_raises_costs_its_own_row(bench: Bench, capsys):
    rows = bench.each(["1", "no", "2"], int, name=lambda item: f"case {item}")
    assert rows == [1, 2]
    said = "ValueError: invalid literal for int() with base 10: 'no'"
    assert bench.failed == [{"name": "case no", "failed": said}]
    bench.each([3], lambda item: item)
    assert capsys.readouterr().err.count("case no") == 1


def test_what_time_leaves_out_is_named(tmp_path: Path):
    late = Bench(card="virtual", folder=tmp_path, at_once=2, until=time.monotonic() - 1)
    assert late.each(["a"], lambda item: item) == []
    assert late.failed == [{"name": "a", "failed": "left out: the time was up"}]


def test_what_is_done_is_kept_on_the_way(bench: Bench, monkeypatch):
    monkeypatch.setattr(measuring, "FLUSH_S", -1.0)
    kept = []
    bench.each([1, 2], lambda item: item, at_once=1, keep=kept.append)
    assert kept == [[1], [1, 2]]


@pytest.mark.parametrize(("name", "played"), [("NVIDIA H200", "h200"), ("NVIDIA H999", "h100-80gb"), (None, None)])
def test_the_card_is_played_whatever_the_driver_calls_it(bench: Bench, monkeypatch, name, played):
    jobs = []
    monkeypatch.setattr(measuring.launch, "run", lambda job: jobs.append(job) or fitting())
    bench.measured(CASES[0].config(), "virtual", like=replace(fitting(), gpu=name))
    assert (jobs[0].gpu, jobs[0].limit_bytes) == (played, 100 * GiB)


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


def test_a_virtual_card_that_raises_costs_no_row_of_the_card(bench: Bench, monkeypatch, capsys):
    def run(job):
        if job.backend == "virtual" and job.gpu:
            raise OSError("no more files")
        return replace(fitting(), step_time_s=2.0 if "optimizer_cpu_offload" in repr(job) else 1.0)

    monkeypatch.setattr(measuring.launch, "run", run)
    document = timings.run(bench, timings.OFFLOAD[:2])
    assert [(row["name"], row["virtual"]) for row in document["rows"]] == [
        ("no offloading", None),
        ("optimizer offload 0.25", None),
    ]
    assert [each["name"] for each in document["failed"]] == [
        "no offloading, virtual",
        "optimizer offload 0.25, virtual",
    ]
    assert "OSError: no more files" in capsys.readouterr().err


def test_a_row_is_compared_with_its_own_base_or_none():
    first, other, alone = (
        case
        for case in timings.RECOMPUTE
        if case.name in {"no recomputation", "full block 8"} or case.name == "unfused, selective core_attn"
    )
    timed = [(case, replace(fitting(), step_time_s=seconds), None) for case, seconds in ((other, 3.0), (alone, 9.0))]
    assert timings._table(timed, first.name).count("+") == 0, "their bases are not there"
    table = timings._table([(first, replace(fitting(), step_time_s=2.0), None), *timed], first.name)
    assert "+50.0 %" in table
    assert "+350.0 %" not in table


def found(commit: str | None, kind: str = "capacity") -> dict:
    culprit = {"culprit": {"commit": commit}} if commit else {}
    return {"range": "a..b", "answer": {**culprit, "first_bad": {"result": {"verdict": {"kind": kind}}}}}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([found("abc"), found("abc")], []),
        ([found("abc"), found("def")], ["a..b: abc, capacity against def, capacity"]),
        ([found("abc"), found("abc", "fragmentation")], ["a..b: abc, capacity against abc, fragmentation"]),
        ([found(None), found(None)], ["a..b: none, capacity against none, capacity"]),
        ([found("abc"), {"range": "a..b", "said": "no git"}], ["a..b: abc, capacity against none, no verdict"]),
    ],
)
def test_searches_that_find_something_else_are_named(rows, told):
    assert history_part.deviations(rows) == told


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"table": "rows", "failed": []}, 0),
        ({"table": "rows", "failed": [], "deviations": []}, 0),
        ({"table": "rows", "failed": [], "deviations": ["gqa: reserved +4.00 %"]}, 3),
        ({"table": "rows", "failed": [{"name": "gqa", "failed": "x"}], "deviations": ["gqa: reserved +4.00 %"]}, 1),
        ({"table": "?", "failed": []}, 1),
    ],
)
def test_the_exit_code_tells_what_failed_from_what_deviates(tmp_path: Path, monkeypatch, capsys, document, code):
    monkeypatch.setattr(gpu_truth.timings, "run", lambda *_: document)
    monkeypatch.setattr(
        gpu_truth.sys, "argv", ["gpu_truth.py", str(tmp_path), "--card", "virtual", "--part", "offload"]
    )
    assert gpu_truth.main() == code
    assert ("deviates: gqa: reserved +4.00 %" in capsys.readouterr().out) == bool(document.get("deviations"))


def test_without_a_card_nothing_is_measured_and_that_is_said(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_truth, "has_card", lambda: False)
    monkeypatch.setattr(gpu_truth.sys, "argv", ["gpu_truth.py", str(tmp_path / "out")])
    assert gpu_truth.main() == 0
    assert "nothing was measured" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_part_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_truth.history, "run", lambda _bench: 1 // 0)
    monkeypatch.setattr(gpu_truth.timings, "run", lambda *_: {"table": "rows", "failed": []})
    words = [str(tmp_path), "--card", "virtual", "--part", "bisect", "--part", "offload"]
    monkeypatch.setattr(gpu_truth.sys, "argv", ["gpu_truth.py", *words])
    assert gpu_truth.main() == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["offload.json.gz"]


def test_what_is_measured_is_named_once():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= 30
    assert gpu_truth.named(CASES, "mla") == [case for case in CASES if "mla" in case.name]


def test_a_name_that_no_configuration_has_is_refused(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        gpu_truth.sys, "argv", ["gpu_truth.py", str(tmp_path), "--card", "virtual", "--only", "nonesuch"]
    )
    with pytest.raises(SystemExit, match="2"):
        gpu_truth.main()
    assert "'nonesuch'" in capsys.readouterr().err


def test_searches_of_the_card_run_one_by_one_and_leave_the_allocator_as_much(tmp_path: Path, monkeypatch):
    on_card, limits = [], {}

    def search(_bench, _repo, range_, limit, backend):
        on_card.append(backend)
        limits[range_, backend] = limit
        time.sleep(0.02)
        assert on_card.count("cuda") <= 1
        on_card.remove(backend)
        return {"range": range_, "backend": backend, "limit": limit, "wall_s": 1.0, "answer": {}}

    monkeypatch.setattr(history_part, "_search", search)
    monkeypatch.setattr(history_part.history, "build", lambda _repo: None)
    monkeypatch.setattr(measuring.launch, "run", lambda job: fitting())
    bench = Bench(card="cuda", folder=tmp_path, at_once=4, until=time.monotonic() + 60)
    document = history_part.run(bench)
    assert (len(document["searches"]), document["failed"]) == (4, [])
    for range_, limit in history_part.SEARCHES:
        assert limits[range_, "virtual"] == limit
        assert limits[range_, "cuda"] == limit - GiB + 7 * MiB
    assert parse_size(str(limit)) == limit


def test_without_git_the_searches_say_so(bench: Bench, monkeypatch):
    monkeypatch.setenv("PATH", str(bench.folder))
    with pytest.raises(RuntimeError, match=r"the demo's history cannot be made: .*git"):
        history_part.run(bench)


def test_a_card_that_tells_nothing_of_itself_ends_the_part():
    with pytest.raises(ValueError, match="the card told nothing of itself: no driver"):
        history_part.more_outside(
            ProbeResult(backend="cuda", outcome="error", failure=Failure(kind="unfit", message="no driver"))
        )
