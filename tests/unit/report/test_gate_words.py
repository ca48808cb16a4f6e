"""What a night says to do next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.result import Culprit, GateResult
from oomscope.gate.night.status import Status
from oomscope.report.gate_commands import Commands
from oomscope.report.gate_sentences import Step, culprit_text, heading, next_steps, row_texts
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result, night


def steps(night: GateResult) -> list[Step]:
    return next_steps(night, Commands.of(night))


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SAME])
def test_whatever_is_not_as_expected_has_a_next_step(status: Status) -> None:
    assert steps(night(1, case_result(1, status)))


def test_what_is_as_expected_has_none() -> None:
    assert steps(night(1)) == []


def test_a_night_that_was_interrupted_says_so_whatever_its_cases_are() -> None:
    assert heading(night(1)) == "GREEN, 1 case: 1 same"
    assert heading(replace(night(1), interrupted=True)) == "NOT GREEN, interrupted, 1 case: 1 same"
    cut_off = night(1, case_result(1), case_result(1, Status.UNMEASURED, name="left"))
    (step,) = steps(replace(cut_off, interrupted=True))
    assert step == Step("interrupted: measure what is left", ("oomscope gate run /repo/memory.yaml --case left",))
    assert steps(cut_off)[0].text.startswith("nothing measured: take the metric out")


def test_what_is_many_is_accepted_one_by_one_and_searched_for_as_a_whole() -> None:
    names = [f"case {number}" for number in range(11)]
    (few,) = steps(night(1, *(case_result(1, Status.WORSE, name=name) for name in names[:2])))
    assert few.text == "worse: find the commit, or accept it"
    assert few.commands == (
        "oomscope gate run /repo/memory.yaml --case 'case 0' --case 'case 1' --bisect",
        "oomscope gate update /repo/memory.yaml --case 'case 0' --case 'case 1' --accept 'case 0' --accept 'case 1'",
    )
    (many,) = steps(night(1, *(case_result(1, Status.WORSE, name=name) for name in names)))
    assert many.text == "worse: find the commit, or accept it by its name, as this first of 11"
    assert many.commands == (
        "oomscope gate run /repo/memory.yaml --bisect",
        "oomscope gate update /repo/memory.yaml --case 'case 0' --accept 'case 0'",
    )


@pytest.mark.parametrize(
    ("brought", "said"),
    [
        (512, "brought +512 B of +1.00 MiB: the rest came with other commits"),
        (MiB, "brought +1.00 MiB (1,048,576 B) of +1.00 MiB (1,049,088 B): the rest came with other commits"),
        (MiB + 512, None),
        (None, None),
    ],
)
def test_a_commit_is_not_blamed_for_what_came_before_it(brought: int | None, said: str | None) -> None:
    culprit = Culprit(outcome="culprit", message="", commit="a" * 40, brought=brought, beyond=MiB + 512)
    assert (said in culprit_text(culprit)) if said else ("brought" not in culprit_text(culprit))


@pytest.mark.parametrize(("more", "said"), [(512, "+1.00 MiB (+1,049,088)"), (0, "+1.00 MiB"), (MiB, "+2.00 MiB")])
def test_a_difference_and_a_band_never_read_alike_where_they_are_not(more: int, said: str) -> None:
    row = MetricRow(
        name="peak_requested", status=Status.WORSE, expected=GiB, measured=GiB + MiB + more, warn=0, fail=MiB
    )
    assert row_texts(row)[3] == said
