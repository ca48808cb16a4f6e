"""A night over a played probe: what is red is measured again, and one case cannot hide another."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import ExitCode
from oomscope.gate.baseline import Baseline
from oomscope.gate.night.result import CaseResult, GateResult
from oomscope.gate.night.run import InterruptedNight, Night
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import values_of
from oomscope.probe.process.launch import StoppedError
from oomscope.units import GiB
from tests.unit.gate.nights import baseline, case, entry, failed, measured, out_of_memory, played, suite

EXPECTED = measured(GiB)


def run(*results, cases=None, **fields) -> GateResult:
    given = {"probe": played(*results), "baseline": baseline(case(), EXPECTED)} | fields
    return Night(suite=suite(*(cases or [case()])), baseline_path=Path("b.yaml"), **given).run()


def test_a_defect_the_second_time_loses_nothing_of_the_first() -> None:
    night = run(out_of_memory(GiB, demand=2 * GiB), ZeroDivisionError("by zero"))
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.DEFECT, ExitCode.INTERNAL)
    assert found.reason.startswith("ZeroDivisionError: by zero")
    assert found.reason.endswith("please report it; worse at first (out of memory (capacity), where it fitted)")
    assert found.first_values is not None
    assert found.first_values["peak_requested"] == 2 * GiB
    assert next((row.name, row.measured, row.status) for row in found.rows) == (
        "peak_requested",
        2 * GiB,
        "unconfirmed",
    )
    assert found.probe is not None
    assert found.probe.verdict is not None
    assert GateResult.from_json(night.to_json(), where="night.json") == night


def test_an_interrupt_between_the_two_measurements_keeps_the_first() -> None:
    measured_once = threading.Event()

    def probe(job, stop):
        if job.target.config["data"]["micro_batch_size"] != 3:
            assert measured_once.wait(timeout=30)
            return EXPECTED
        if not measured_once.is_set():
            measured_once.set()
            return measured(GiB + 1)
        assert stop.wait(timeout=30)
        raise StoppedError

    def announce(_done, _total, _case) -> None:
        raise KeyboardInterrupt

    red = case("red", overrides=("data.micro_batch_size=3",))
    accepted = Baseline(entries={one.name: (entry(one, EXPECTED),) for one in (case(), red)})
    with pytest.raises(InterruptedNight) as caught:
        run(cases=[case(), red], probe=probe, baseline=accepted, jobs=2, announce=announce)
    green, found = caught.value.night.cases
    assert (green.status, found.status) == (Status.SAME, Status.UNMEASURED)
    assert found.reason == "interrupted before it was measured again; worse at first (peak_requested)"
    assert found.first_values is not None
    assert found.first_values["peak_requested"] == found.rows[0].measured == GiB + 1


ON_CARD = {"backend": "cuda", "gpu": "h100", "non_torch_bytes": GiB}
RAN_OUT, DEMAND = out_of_memory(GiB // 2), out_of_memory(GiB, demand=2 * GiB)
VIRTUAL = baseline(case(), EXPECTED)
CARD = baseline(case(), measured(GiB, **ON_CARD))
FITTED_NOT = baseline(case(), replace(out_of_memory(GiB, demand=GiB), **ON_CARD))
OK, RED, BETTER = ExitCode.OK, ExitCode.REGRESSION, ExitCode.IMPROVED


def card(live: int = GiB, **fields):
    return measured(live, **{**ON_CARD, **fields})


@pytest.mark.parametrize(
    ("first", "again", "accepted", "status", "code", "reason"),
    [
        (EXPECTED, None, Baseline(), Status.NO_BASELINE, ExitCode.NO_BASELINE, ""),
        (measured(GiB + 1), measured(GiB + 2), VIRTUAL, Status.WORSE, RED, ""),
        (
            measured(GiB + 1),
            EXPECTED,
            VIRTUAL,
            Status.UNCONFIRMED,
            OK,
            "worse at first (peak_requested), and same when",
        ),
        (
            measured(GiB + 1),
            failed("timeout", "took longer than 600 s"),
            VIRTUAL,
            Status.UNTESTABLE,
            ExitCode.TARGET_FAILED,
            "timeout: took longer than 600 s; worse at first (peak_requested)",
        ),
        (
            measured(2 * GiB),
            measured(2 * GiB, gpu="another card"),
            VIRTUAL,
            Status.INCOMPATIBLE,
            ExitCode.NO_BASELINE,
            "accepted under other conditions",
        ),
        (
            measured(GiB, pinned_bytes=1),
            measured(GiB, reserved=2 * GiB),
            VIRTUAL,
            Status.UNCONFIRMED,
            OK,
            "worse at first (pinned), and worse (peak_reserved) when it was measured again",
        ),
        (measured(GiB + 1), measured(GiB - 1), VIRTUAL, Status.UNCONFIRMED, OK, "worse at first"),
        (measured(GiB + 1), RAN_OUT, VIRTUAL, Status.WORSE, RED, "out of memory"),
        (RAN_OUT, RAN_OUT, VIRTUAL, Status.WORSE, RED, "out of memory"),
        (
            RAN_OUT,
            EXPECTED,
            VIRTUAL,
            Status.UNCONFIRMED,
            OK,
            "worse at first (out of memory (capacity), where it fitted)",
        ),
        (DEMAND, measured(2 * GiB), VIRTUAL, Status.WORSE, RED, ""),
        (card(GiB - 1), replace(RAN_OUT, **ON_CARD), CARD, Status.UNCONFIRMED, OK, "better at first"),
        (measured(GiB - 1), None, VIRTUAL, Status.BETTER, BETTER, ""),
        (card(GiB - 1), card(GiB - 2), CARD, Status.BETTER, BETTER, ""),
        (card(GiB - 1), card(), CARD, Status.UNCONFIRMED, OK, "better at first (peak_requested"),
        (card(), card(GiB - 1), FITTED_NOT, Status.BETTER, BETTER, ""),
        (measured(GiB - 1, reserved=GiB + 1), None, VIRTUAL, Status.WARN, BETTER, ""),
        (measured(GiB - 1, pinned_bytes=1), measured(GiB - 1, pinned_bytes=1), VIRTUAL, Status.WORSE, RED, ""),
    ],
)
def test_what_is_seen_twice_counts(first, again, accepted, status, code, reason) -> None:
    night = run(*filter(None, (first, again)), baseline=accepted, strict=True)
    (found,) = night.cases
    assert (found.status, night.exit_code) == (status, code)
    assert found.reason.startswith(reason)
    assert (found.first_values is None) == (again is None)
    assert found.first_values in (None, values_of(first))
    if status is Status.UNCONFIRMED:
        assert not found.is_better
        assert all(row.status is not Status.WORSE for row in found.rows)


WRONG = {
    "command": ({"source": "no-such-program"}, "memory.yaml:2: no program no-such-program"),
    "entry": ({"source": "train"}, "memory.yaml:2: --entry: 'train' is not an entry"),
    "config": ({"source": "none.yaml"}, "memory.yaml:2: none.yaml: No such file or directory"),
    "harness": ({"source": "none.py"}, f"memory.yaml:2: {Path('none.py').absolute()}: no such harness file"),
    "preset": ({"overrides": ("data.micro_batch_siz=2",)}, "memory.yaml:2: override data.micro_batch_siz=2: unknown"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_planned_names_the_line_of_the_suite(kind: str) -> None:
    fields, said = WRONG[kind]
    extras = {"metric_regex": "(x)"} if kind == "command" else {}
    (found,) = run(EXPECTED, cases=[case("wrong", **{"kind": kind, "extras": extras, **fields})]).cases
    assert found.status is Status.UNUSABLE
    assert found.reason.startswith(said)


def test_a_file_in_other_names_says_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\nmicro_batch_size: 1\n")
    foreign = case(kind="config", source=str(path), extras={"from": "megatron"})
    (found,) = run(EXPECTED, cases=[foreign], baseline=baseline(foreign, EXPECTED)).cases
    assert found.status is Status.SAME
    assert any(note.startswith("assumed: the vocabulary") for note in found.notes)
    own = case(kind="config", source=str(path))
    assert run(EXPECTED, cases=[own]).cases[0].status is Status.UNUSABLE


def test_a_defect_in_one_case_does_not_hide_the_others() -> None:
    night = run(ZeroDivisionError("by zero"), EXPECTED, cases=[case("broken"), case()])
    assert [found.status for found in night.cases] == [Status.DEFECT, Status.SAME]
    assert re.fullmatch(r"ZeroDivisionError: by zero \(nights.py:\d+\); please report it", night.cases[0].reason)
    assert night.exit_code == ExitCode.INTERNAL


def test_cases_side_by_side_come_in_the_order_of_the_suite() -> None:
    names = ("a", "b", "c")
    together = threading.Barrier(3)

    def probe(_job, _stop):
        together.wait(timeout=30)
        return EXPECTED

    told = []
    night = run(
        cases=[case(name) for name in names],
        probe=probe,
        baseline=Baseline(),
        jobs=3,
        announce=lambda done, total, found: told.append((done, total, found.name)),
    )
    assert [found.name for found in night.cases] == list(names)
    assert [row[:2] for row in told] == [(1, 3), (2, 3), (3, 3)]


STAGES = "preset: gpt-tiny\nparallel: {pipeline_model_parallel_size: PP}\nmodel: {num_layers: 8}\n"


def test_numbers_of_another_rank_are_marked(tmp_path: Path) -> None:
    def measured_with(stages: int, accepted: Baseline) -> CaseResult:
        (tmp_path / "train.yaml").write_text(STAGES.replace("PP", str(stages)))
        played_rank = replace(EXPECTED, rank=stages - 1, world_size=stages)
        return run(played_rank, cases=[last], baseline=accepted).cases[0]

    last = case(kind="config", source=str(tmp_path / "train.yaml"), overrides=("probe.rank=last",))
    assert measured_with(1, Baseline()).rank == ""
    two = measured_with(2, Baseline())
    assert two.rank == "1 of 2, stage 2 of 2"
    accepted = Baseline(entries={"tiny": (entry(last, EXPECTED, rank=two.rank),)})
    assert (measured_with(2, accepted).status, measured_with(2, accepted).notes) == (Status.SAME, ())
    four = measured_with(4, accepted)
    assert four.status is Status.SAME
    said = "the baseline is of rank 1 of 2, stage 2 of 2, and this is rank 3 of 4, stage 4 of 4: their numbers"
    assert four.notes == (f"{said} are compared",)
    first = replace(last, overrides=("probe.rank=first",))
    other = run(EXPECTED, cases=[first], baseline=accepted).cases[0]
    assert (other.status, other.reason) == (
        Status.INCOMPATIBLE,
        "accepted under other conditions: what the suite asks for has changed",
    )
