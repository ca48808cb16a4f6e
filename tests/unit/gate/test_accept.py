"""Nothing worse enters the baseline unless somebody names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import InputError
from oomscope.gate.accept import accept
from oomscope.gate.baseline import Baseline
from oomscope.gate.night.run import Night
from oomscope.gate.night.status import Status
from oomscope.gate.suite.metrics import Band, Bands
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import baseline, case, failed, measured, out_of_memory, played, suite

BEFORE = baseline(case(), measured(GiB))


def accepted(*results, before=BEFORE, named=(), asked=None):
    asked = asked or suite()
    night = Night(suite=asked, baseline=before, baseline_path=Path("b.yaml"), probe=played(*results)).run()
    return accept(night, before, asked, named)


def test_what_is_new_or_better_is_accepted() -> None:
    made = accepted(measured(GiB), before=Baseline())
    assert made.accepted == ("tiny",)
    better = accepted(measured(GiB - MiB))
    assert better.baseline.entries["tiny"][0].values["peak_requested"] == GiB - MiB


def test_what_is_the_same_changes_nothing() -> None:
    made = accepted(measured(GiB))
    assert (made.accepted, made.left) == ((), {})
    assert made.baseline == BEFORE


def test_what_is_the_same_inside_its_band_does_not_move_the_baseline() -> None:
    wide = suite(case(bands={"peak_requested": {"warn": "8MiB", "fail": "16MiB"}}))
    made = accepted(measured(GiB + 6 * MiB, reserved=GiB), asked=wide)
    assert (made.accepted, made.left, made.baseline) == ((), {}, BEFORE)
    better = accepted(measured(GiB + 6 * MiB, reserved=GiB - MiB), asked=wide)
    assert (better.accepted, better.baseline.entries["tiny"][0].values["peak_requested"]) == (("tiny",), GiB)
    named = accepted(measured(GiB + 6 * MiB, reserved=GiB), asked=wide, named=("tiny",))
    assert named.baseline.entries["tiny"][0].values["peak_requested"] == GiB + 6 * MiB


@pytest.mark.parametrize(
    "result", [measured(GiB + 1), measured(GiB, reserved=GiB + MiB), out_of_memory(GiB, demand=2 * GiB)]
)
def test_what_is_worse_is_accepted_by_name_only(result) -> None:
    left = accepted(result)
    assert left.baseline == BEFORE
    assert left.left["tiny"].endswith("accept it with --accept tiny")
    assert accepted(result, named=("tiny",)).accepted == ("tiny",)


@pytest.mark.parametrize(
    ("result", "asked", "conditions"),
    [
        (measured(GiB + MiB, allocator_conf="expandable_segments:True"), case(), "allocator none, now expandable_segm"),
        (measured(GiB + MiB, versions={"torch": "2.14.0"}), case(), "torch 2.13.0, now 2.14.0"),
        (measured(GiB + MiB), case(overrides=("data.micro_batch_size=2",)), "what the suite asks for has changed"),
        (out_of_memory(GiB, demand=GiB), case(overrides=("data.micro_batch_size=2",)), ""),
    ],
)
def test_what_is_worse_than_under_other_conditions_on_the_card_is_accepted_by_name_only(
    result, asked, conditions
) -> None:
    left = accepted(result, asked=suite(asked))
    assert left.baseline == BEFORE
    assert left.left_as == (Status.WORSE,)
    assert conditions in left.left["tiny"]
    assert left.left["tiny"].endswith("accept it with --accept tiny")
    assert accepted(result, asked=suite(asked), named=("tiny",)).accepted == ("tiny",)


@pytest.mark.parametrize(
    "result",
    [
        measured(GiB, allocator_conf="expandable_segments:True"),
        measured(GiB - MiB, allocator_conf="expandable_segments:True"),
        measured(GiB, versions={"torch": "2.14.0"}, pinned_bytes=None),
        measured(2 * GiB, gpu="a100-80gb"),
    ],
)
def test_what_is_no_worse_than_under_other_conditions_or_on_another_card_is_accepted(result) -> None:
    made = accepted(result)
    assert (made.accepted, made.left) == (("tiny",), {})
    assert len(made.baseline.entries["tiny"]) == 2


@pytest.mark.parametrize("result", [failed(), measured(0), measured(GiB, pinned_bytes=None)])
def test_what_was_not_measured_is_never_accepted(result) -> None:
    made = accepted(result, named=("tiny",))
    assert made.baseline == BEFORE
    assert made.left


def test_a_first_measurement_that_ran_out_of_memory_is_accepted_only_by_name() -> None:
    result = out_of_memory(GiB, demand=2 * GiB)
    assert accepted(result, before=Baseline()).left["tiny"].startswith("out of memory")
    assert accepted(result, before=Baseline(), named=("tiny",)).accepted == ("tiny",)


def test_what_would_leave_nothing_to_compare_with_is_never_accepted() -> None:
    unknown = accepted(out_of_memory(), before=Baseline(), named=("tiny",))
    assert unknown.left == {"tiny": "peak_requested not measured: nothing to compare with"}
    asked = suite(case(asked=("peak_requested", "flops")))
    assert "flops not measured" in accepted(measured(GiB), before=Baseline(), asked=asked).left["tiny"]
    flops, known = suite(case(asked=("flops",))), replace(out_of_memory(), flops={"model": 1})
    assert accepted(known, before=Baseline(), asked=flops, named=("tiny",)).accepted == ("tiny",)


def test_calibrated_bands_stay() -> None:
    bands = {"peak_requested": Bands(warn=Band(absolute=5), fail=Band(absolute=10))}
    made = accepted(measured(GiB - MiB), before=baseline(case(), measured(GiB), bands=bands))
    assert made.baseline.entries["tiny"][0].bands == bands


def test_a_night_of_another_suite_is_refused() -> None:
    night = Night(suite=suite(), baseline=BEFORE, baseline_path=Path("b.yaml"), probe=played(measured(GiB))).run()
    with pytest.raises(InputError, match="another suite"):
        accept(night, BEFORE, suite(case(overrides=("data.micro_batch_size=2",))))
    with pytest.raises(InputError, match="cases are tiny"):
        accept(night, BEFORE, suite(), ("tyni",))


def test_an_old_night_is_compared_with_what_is_accepted_by_now() -> None:
    then = baseline(case(), measured(3 * GiB))
    night = Night(suite=suite(), baseline=then, baseline_path=Path("b.yaml"), probe=played(measured(3 * GiB))).run()
    assert night.cases[0].status is Status.SAME
    made = accept(night, BEFORE, suite())
    assert (made.baseline, made.left_as) == (BEFORE, (Status.WORSE,))
    assert accept(night, BEFORE, suite(), ("tiny",)).accepted == ("tiny",)
    unaccepted = Night(
        suite=suite(), baseline=Baseline(), baseline_path=Path("b.yaml"), probe=played(measured(3 * GiB))
    )
    assert accept(unaccepted.run(), BEFORE, suite()).left
