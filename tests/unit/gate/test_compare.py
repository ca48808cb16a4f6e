"""Measured against expected: never green by accident, and the gravest wins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.errors import GRAVITY as CODES
from oomscope.errors import ExitCode
from oomscope.gate.baseline import Baseline
from oomscope.gate.night.compare import compare_case, compare_metric
from oomscope.gate.night.status import GREEN, Status, ruling
from oomscope.gate.suite.metrics import METRICS, Band, Bands
from oomscope.probe.targets.program.results import Ended, failure_in
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import baseline, case, entry, failed, measured, out_of_memory

SIZES = st.integers(0, 2**50)
BANDS = st.builds(
    lambda warn, fail: Bands(warn=Band(absolute=warn), fail=Band(absolute=fail)),
    st.integers(0, 100),
    st.integers(0, 100),
)


@given(st.sampled_from(list(METRICS)), SIZES, SIZES, BANDS)
def test_a_metric_is_worse_beyond_its_band_and_nowhere_else(name, expected, measured_, bands) -> None:
    row = compare_metric(name, expected, measured_, bands)
    sign = 1 if METRICS[name].is_worse_when_larger else -1
    growth = sign * (measured_ - expected)
    assert (row.status is Status.WORSE) == (growth > bands.fail.absolute)
    if growth == 0:
        assert row.status is Status.SAME
    if growth < 0:
        assert row.status in {Status.SAME, Status.BETTER}
    assert row.difference == measured_ - expected


@given(st.lists(st.sampled_from(list(Status)), min_size=1))
def test_the_gravest_code_wins_whatever_the_order(statuses) -> None:
    codes = [ruling([status]).exit_code for status in statuses]
    assert ruling(statuses).exit_code == min(codes, key=CODES.index)
    assert (ruling(statuses).exit_code == ExitCode.OK) == all(code == ExitCode.OK for code in codes)


def test_a_gate_without_cases_is_not_green() -> None:
    assert ruling([]).exit_code == ExitCode.NOTHING_MEASURED


def test_better_is_green_unless_strict() -> None:
    assert ruling([Status.BETTER, Status.SAME]).exit_code == ExitCode.OK
    assert ruling([Status.BETTER, Status.SAME], strict=True).exit_code == ExitCode.IMPROVED
    assert ruling([Status.BETTER, Status.WORSE], strict=True).exit_code == ExitCode.REGRESSION


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (measured(GiB), Status.SAME),
        (measured(GiB + 1), Status.WORSE),
        (measured(GiB - 1), Status.BETTER),
        (measured(GiB, reserved=GiB + MiB), Status.WARN),
        (measured(GiB, reserved=GiB + 21 * MiB), Status.WORSE),
        (measured(GiB, pinned_bytes=1), Status.WORSE),
        (measured(GiB, pinned_bytes=None), Status.UNMEASURED),
        (measured(0), Status.UNMEASURED),
        (replace(measured(), peak=None, reserved_peak=None), Status.UNMEASURED),
        (out_of_memory(GiB), Status.WORSE),
        (failed("import"), Status.UNTESTABLE),
        (failed("timeout"), Status.UNTESTABLE),
        (failed("killed"), Status.UNTESTABLE),
        (failed("unfit"), Status.UNFIT),
        (failed("usage"), Status.UNUSABLE),
        (replace(failed(), failure=None), Status.UNTESTABLE),
        (measured(GiB, versions={"torch": "2.14.0"}), Status.INCOMPATIBLE),
        (measured(GiB, backend="cuda"), Status.INCOMPATIBLE),
        (measured(GiB, allocator_conf="expandable_segments:True"), Status.INCOMPATIBLE),
    ],
)
def test_what_a_measurement_is(result, status) -> None:
    expected = baseline(case(), measured(GiB))
    assert compare_case(case(), result, expected).status is status


def test_a_program_that_failed_before_it_imported_torch_is_named_with_the_last_line_that_it_printed() -> None:
    failure = failure_in(Ended(status=2, killed=False, receipts=(), seconds=1.0))
    assert failure is not None
    result = replace(failed(), failure=replace(failure, detail="Loading\nNo module named 'data'\n"))
    expected = baseline(case(), measured(GiB))
    found = compare_case(case(), result, expected)
    assert found.status is Status.UNTESTABLE
    assert found.reason == f"exit: {failure.message}: No module named 'data'"


def test_differences_of_conditions_are_named() -> None:
    expected = baseline(case(), measured(GiB))
    other = compare_case(case(), measured(GiB, versions={"torch": "2.14.0"}), expected)
    assert other.reason == "accepted under other conditions: torch 2.13.0, now 2.14.0"
    asked = compare_case(case(overrides=("data.micro_batch_size=2",)), measured(GiB), expected)
    assert asked.status is Status.INCOMPATIBLE
    assert asked.reason.endswith("what the suite asks for has changed")


def test_a_metric_that_is_asked_for_must_be_measured_and_accepted() -> None:
    asked = case(asked=("peak_requested", "non_torch"))
    compared = compare_case(asked, measured(GiB), baseline(asked, measured(GiB)))
    assert compared.status is Status.UNMEASURED
    assert compared.reason == "non_torch not measured here"
    asked = case(asked=("flops",))
    compared = compare_case(asked, measured(GiB, flops={"model": 5}), baseline(asked, measured(GiB)))
    assert compared.status is Status.NO_BASELINE


@pytest.mark.parametrize("kept", [{"pinned": 0}, {}, {"pinned": 0, "peak_reserved": 101 * GiB}])
def test_an_entry_that_lacks_what_counts_by_default_is_never_green(kept) -> None:
    expected = baseline(case(), measured(GiB), values=kept)
    compared = compare_case(case(), measured(101 * GiB), expected)
    assert compared.status is Status.NO_BASELINE
    assert compared.reason.startswith("the baseline has no peak_requested")
    blind = baseline(case(), out_of_memory(GiB), values={"pinned": 0})
    assert compare_case(case(), out_of_memory(2 * GiB), blind).status is Status.UNMEASURED


def test_bands_for_a_metric_that_does_not_count_by_default_make_it_count() -> None:
    named = case(bands={"overhead": {"fail": "1MiB"}}, asked=("overhead",), chooses=False)
    compared = compare_case(named, measured(GiB), baseline(case(), measured(GiB)))
    assert (compared.status, compared.reason) == (Status.NO_BASELINE, "the baseline has no overhead")
    accepted = baseline(named, measured(GiB))
    assert compare_case(named, measured(GiB, reserved=GiB + 2 * MiB), accepted).status is Status.WORSE


def test_running_out_of_memory_is_worse_though_nothing_else_can_be_compared() -> None:
    compared = compare_case(case(), out_of_memory(GiB // 2), baseline(case(), measured(GiB)))
    assert compared.status is Status.WORSE
    assert compared.reason == "out of memory (capacity), where it fitted"


@pytest.mark.parametrize(("kind", "tags"), [("capacity", ("foreign",)), ("host", ()), ("outside", ())])
def test_what_the_rest_of_the_machine_had_left_is_no_regression(kind, tags) -> None:
    ran_out = replace(out_of_memory(GiB // 2), backend="cuda")
    assert ran_out.verdict is not None
    others = replace(ran_out, verdict=replace(ran_out.verdict, kind=kind, tags=tags, headline="Others hold 70 GiB."))
    accepted = baseline(case(), measured(GiB, backend="cuda"))
    found = compare_case(case(), others, accepted)
    assert (found.status, found.reason) == (Status.UNFIT, "Others hold 70 GiB.")
    assert compare_case(case(), ran_out, accepted).status is Status.WORSE


def test_a_case_that_is_to_go_out_of_memory_is_compared_by_its_demand() -> None:
    expected = baseline(case(asked=("peak_requested",)), out_of_memory(GiB, demand=2 * GiB))
    asked = case(asked=("peak_requested",))
    assert compare_case(asked, out_of_memory(GiB, demand=2 * GiB), expected).status is Status.SAME
    assert compare_case(asked, out_of_memory(GiB, demand=2 * GiB + 1), expected).status is Status.WORSE
    assert compare_case(asked, out_of_memory(GiB), expected).status is Status.UNMEASURED
    fits = compare_case(asked, measured(2 * GiB), expected)
    assert (fits.status, fits.reason) == (Status.BETTER, "it fits, where it ran out of memory")


@given(
    st.sampled_from([measured(GiB), measured(2 * GiB), out_of_memory(), failed(), measured(0)]),
    BANDS,
    st.sets(st.sampled_from(["peak_requested", "peak_reserved", "pinned"])),
)
def test_green_means_measured_and_inside_every_band(result, bands, lost) -> None:
    whole = entry(case(), measured(GiB), bands={"peak_requested": bands})
    kept = replace(whole, values={name: value for name, value in whole.values.items() if name not in lost})
    compared = compare_case(case(), result, Baseline(entries={"tiny": (kept,)}))
    if compared.status in GREEN:
        assert result.outcome == "fits"
        assert {row.name for row in compared.rows} >= {"peak_requested", "peak_reserved", "pinned"}
        assert all(row.difference <= row.fail for row in compared.rows)
