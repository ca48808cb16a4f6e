"""A night over a played probe: what is red is measured again, and one case cannot hide another."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import ExitCode, MachineUnfitError
from oomscope.gate.baseline import Baseline
from oomscope.gate.checkouts import standings
from oomscope.gate.night.result import CaseResult, GateResult, Standing
from oomscope.gate.night.run import InterruptedNight, Night
from oomscope.gate.night.status import Status
from oomscope.probe.process.launch import StoppedError
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import baseline, case, entry, failed, measured, out_of_memory, played, suite

EXPECTED = measured(GiB)


def run(*results, cases=None, **fields) -> GateResult:
    given = {"probe": played(*results), "baseline": baseline(case(), EXPECTED)} | fields
    return Night(suite=suite(*(cases or [case()])), baseline_path=Path("b.yaml"), **given).run()


def test_green() -> None:
    night = run(EXPECTED)
    assert night.cases[0].status is Status.SAME
    assert night.cases[0].first_values is None
    assert night.exit_code == ExitCode.OK


def test_red_is_measured_again() -> None:
    night = run(measured(GiB + 1), measured(GiB + 2))
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.WORSE, ExitCode.REGRESSION)
    assert found.first_values is not None
    assert (found.first_values["peak_requested"], found.values["peak_requested"]) == (GiB + 1, GiB + 2)


def test_what_is_red_once_is_no_regression() -> None:
    night = run(measured(GiB + 1), EXPECTED)
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.UNCONFIRMED, ExitCode.OK)
    assert found.reason == "worse at first (peak_requested), and same when it was measured again"


def test_what_cannot_be_measured_again_is_neither_red_nor_green() -> None:
    night = run(measured(GiB + 1), failed("timeout", "took longer than 600 s"))
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.UNTESTABLE, ExitCode.TARGET_FAILED)
    assert found.reason == "timeout: took longer than 600 s; worse at first (peak_requested)"


def test_a_defect_the_second_time_loses_nothing_of_the_first() -> None:
    answers = [out_of_memory(GiB, demand=2 * GiB), ZeroDivisionError("by zero")]

    def probe(_job, _stop):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    night = run(probe=probe)
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


def _ended(stop: BaseException, probe, *names: str, jobs: int = 1) -> InterruptedNight:
    """Return a night that ``stop`` ends once its first case is done."""

    def announce(_done, _total, _case) -> None:
        raise stop

    with pytest.raises(InterruptedNight) as caught:
        run(
            cases=[case(name) for name in names],
            probe=probe,
            baseline=Baseline(entries={name: (entry(case(name), EXPECTED),) for name in names}),
            jobs=jobs,
            announce=announce,
        )
    return caught.value


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_an_interrupted_night_keeps_what_it_measured(stop: BaseException, code: int) -> None:
    ended = _ended(stop, played(EXPECTED), "done", "open")
    done, left = ended.night.cases
    assert (done.status, done.values["peak_requested"]) == (Status.SAME, GiB)
    assert (left.status, left.reason) == (Status.UNMEASURED, "interrupted before it was measured")
    assert (ended.exit_code, ended.night.exit_code) == (code, ExitCode.INTERRUPTED)
    assert GateResult.from_json(ended.night.to_json(), where="night.json") == ended.night


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


def test_an_interrupt_before_anything_was_measured_leaves_no_night() -> None:
    def announce(_done, _total, _case) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(EXPECTED, cases=[case("wrong", source="none"), case()], announce=announce)
    assert not isinstance(caught.value, InterruptedNight)


def test_what_cannot_be_compared_again_is_not_green() -> None:
    night = run(measured(2 * GiB), measured(2 * GiB, gpu="another card"))
    assert (night.cases[0].status, night.exit_code) == (Status.INCOMPATIBLE, ExitCode.NO_BASELINE)


def test_a_metric_that_is_worse_once_confirms_no_other() -> None:
    night = run(measured(GiB, pinned_bytes=1), measured(GiB, reserved=2 * GiB))
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.UNCONFIRMED, ExitCode.OK)
    assert found.reason == "worse at first (pinned), and worse (peak_reserved) when it was measured again"
    assert all(row.status is not Status.WORSE for row in found.rows)


def test_of_several_metrics_those_that_are_worse_twice_count() -> None:
    (found,) = run(measured(GiB + 1), measured(GiB + 1, pinned_bytes=1)).cases
    assert found.status is Status.WORSE
    assert {row.name: row.status for row in found.rows}["pinned"] is Status.UNCONFIRMED
    assert found.decisive is not None
    assert found.decisive.name == "peak_requested"


def test_running_out_of_memory_confirms_whatever_was_worse_before() -> None:
    (found,) = run(measured(GiB + 1), out_of_memory(GiB // 2)).cases
    assert found.status is Status.WORSE


def test_running_out_of_memory_is_confirmed_by_itself() -> None:
    night = run(out_of_memory(GiB // 2), out_of_memory(GiB // 2))
    assert (night.cases[0].status, night.exit_code) == (Status.WORSE, ExitCode.REGRESSION)


@pytest.mark.parametrize(
    ("again", "then"), [(EXPECTED, "same"), (measured(GiB, reserved=GiB + 21 * MiB), "worse (peak_reserved)")]
)
def test_running_out_of_memory_once_is_no_regression_whatever_else_is_worse_then(again, then) -> None:
    night = run(out_of_memory(GiB // 2), again)
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.UNCONFIRMED, ExitCode.OK)
    assert found.reason.endswith(f"where it fitted), and {then} when it was measured again")
    assert all(row.status is not Status.WORSE for row in found.rows)


def test_a_metric_that_was_worse_beside_running_out_of_memory_is_confirmed_by_itself() -> None:
    (found,) = run(out_of_memory(GiB, demand=2 * GiB), measured(2 * GiB)).cases
    assert found.status is Status.WORSE


def test_running_out_of_memory_after_something_better_is_seen_once() -> None:
    ran_out = replace(out_of_memory(GiB // 2), **ON_CARD)
    night = run(measured(GiB - 1, **ON_CARD), ran_out, **CARD)
    assert (night.cases[0].status, night.exit_code) == (Status.UNCONFIRMED, ExitCode.OK)


@pytest.mark.parametrize("strict", [False, True])
def test_better(strict: bool) -> None:
    assert run(measured(GiB - 1), strict=strict).exit_code == (ExitCode.IMPROVED if strict else ExitCode.OK)


ON_CARD = {"backend": "cuda", "gpu": "h100", "non_torch_bytes": GiB}
CARD = {"baseline": baseline(case(), measured(GiB, **ON_CARD)), "strict": True}


def test_better_is_measured_again_on_a_card() -> None:
    night = run(measured(GiB - 1, **ON_CARD), measured(GiB - 2, **ON_CARD), **CARD)
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.BETTER, ExitCode.IMPROVED)
    assert found.first_values is not None
    assert (found.first_values["peak_requested"], found.values["peak_requested"]) == (GiB - 1, GiB - 2)
    assert run(measured(GiB - 1)).cases[0].first_values is None


@pytest.mark.parametrize(
    ("again", "then"),
    [
        (measured(GiB, **ON_CARD), "same"),
        (measured(GiB, reserved=GiB - 1, **ON_CARD), "better (peak_reserved)"),
        (measured(GiB + 1, **ON_CARD), "worse (peak_requested)"),
        (measured(GiB, reserved=GiB + 1, **ON_CARD), "warn"),
    ],
)
def test_what_is_better_once_on_a_card_proposes_no_baseline(again, then) -> None:
    night = run(measured(GiB - 1, reserved=GiB, **ON_CARD), again, **CARD)
    (found,) = night.cases
    assert (found.status, night.exit_code) == (Status.UNCONFIRMED, ExitCode.OK)
    assert found.reason == f"better at first (peak_requested), and {then} when it was measured again"
    assert not found.is_better


def test_better_beside_what_is_told_is_confirmed_as_well() -> None:
    mixed = measured(GiB - 1, reserved=GiB + 1, **ON_CARD)
    assert run(mixed, mixed, **CARD).cases[0].is_better
    once = run(mixed, measured(GiB, reserved=GiB + 1, **ON_CARD), **CARD).cases[0]
    assert (once.status, once.is_better) == (Status.UNCONFIRMED, False)


def test_fitting_twice_where_it_did_not_is_better() -> None:
    before = baseline(case(), replace(out_of_memory(GiB, demand=GiB), **ON_CARD))
    night = run(measured(GiB, **ON_CARD), measured(GiB - 1, **ON_CARD), baseline=before)
    assert night.cases[0].status is Status.BETTER


def test_a_regression_that_turns_out_better_proposes_no_baseline() -> None:
    (found,) = run(measured(GiB + 1), measured(GiB - 1)).cases
    assert (found.status, found.is_better) == (Status.UNCONFIRMED, False)


def test_better_counts_beside_what_is_merely_told() -> None:
    mixed = measured(GiB - 1, reserved=GiB + 1)
    assert run(mixed).cases[0].status is Status.WARN
    assert [run(mixed, strict=strict).exit_code for strict in (False, True)] == [ExitCode.OK, ExitCode.IMPROVED]
    assert run(measured(GiB - 1, pinned_bytes=1), strict=True).exit_code == ExitCode.REGRESSION


def test_fitting_where_it_did_not_is_better_also_beside_what_is_merely_told() -> None:
    before = baseline(case(), out_of_memory(GiB, demand=2 * GiB))
    night = run(measured(2 * GiB, reserved=2 * GiB + MiB), baseline=before, strict=True)
    assert (night.cases[0].status, night.exit_code) == (Status.WARN, ExitCode.IMPROVED)


def test_without_a_baseline_it_is_measured_and_not_green() -> None:
    night = run(EXPECTED, baseline=Baseline())
    assert night.exit_code == ExitCode.NO_BASELINE
    assert night.cases[0].values["peak_requested"] == GiB


def test_a_wrong_case_does_not_hide_the_others() -> None:
    wrong = case("wrong", source="no-such-preset")
    night = run(EXPECTED, cases=[wrong, case()])
    assert [found.status for found in night.cases] == [Status.UNUSABLE, Status.SAME]
    assert "no-such-preset" in night.cases[0].reason
    assert night.exit_code == ExitCode.USAGE


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


def test_a_missing_checkout_and_a_path_that_cannot_be_are_named() -> None:
    missing = case("missing", kind="harness", source=__file__, repo="none")
    long = case("long", kind="harness", source="x" * 300)
    first, second = run(EXPECTED, cases=[missing, long], stands_at=standings()).cases
    assert first.reason == "memory.yaml:2: no such checkout: none; give repo: a folder"
    assert second.reason == "memory.yaml:2: cannot be used: File name too long; give another path"


def test_a_file_in_other_names_says_what_was_assumed(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 64\nmicro_batch_size: 1\n")
    foreign = case(kind="config", source=str(path), extras={"from": "megatron"})
    (found,) = run(EXPECTED, cases=[foreign], baseline=baseline(foreign, EXPECTED)).cases
    assert found.status is Status.SAME
    assert any(note.startswith("assumed: the vocabulary") for note in found.notes)
    own = case(kind="config", source=str(path))
    assert run(EXPECTED, cases=[own]).cases[0].status is Status.UNUSABLE


def test_an_unfit_machine_is_no_fault_of_the_code() -> None:
    def probe(_job, _stop):
        raise MachineUnfitError("no place for temporary files")

    assert run(EXPECTED, probe=probe).exit_code == ExitCode.MACHINE_UNFIT


def test_a_defect_in_one_case_does_not_hide_the_others() -> None:
    answers = [ZeroDivisionError("by zero"), EXPECTED]

    def probe(_job, _stop):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    night = run(probe=probe, cases=[case("broken"), case()])
    assert [found.status for found in night.cases] == [Status.DEFECT, Status.SAME]
    assert re.fullmatch(r"ZeroDivisionError: by zero \(test_run.py:\d+\); please report it", night.cases[0].reason)
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


def test_the_worst_rank_speaks_for_all() -> None:
    ranks = []

    def probe(job, _stop):
        ranks.append(job.rank)
        return measured(GiB + job.rank, available_bytes=2 * GiB)

    staged = case(source="llama3-70b", overrides=("probe.rank=worst",))
    night = run(cases=[staged], probe=probe, baseline=Baseline())
    assert len(ranks) > 1
    assert night.cases[0].values["peak_requested"] == GiB + max(ranks)


STAGES = "preset: gpt-tiny\nparallel: {pipeline_model_parallel_size: PP}\nmodel: {num_layers: 8}\n"


def test_numbers_of_another_rank_are_said_to_be(tmp_path: Path) -> None:
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
        "accepted under other conditions: the suite asked for something else",
    )


def test_a_night_survives_being_written() -> None:
    night = run(
        measured(GiB + 1),
        baseline=baseline(case(), EXPECTED, oomscope="0.0.1"),
        stands_at=lambda _case: Standing(commit="c" * 40, subject="Grow"),
    )
    assert night.cases[0].notes[0].startswith("the baseline is of oomscope 0.0.1")
    assert GateResult.from_json(night.to_json(), where="night.json") == night
