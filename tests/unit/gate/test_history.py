"""Trends: what changed since when, and where they begin afresh."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oomscope.gate.ledger.history import Trend, trends
from oomscope.gate.ledger.ledger import Point
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Series
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result

SERIES = Series(suite="memory.yaml", repository="group/project")


def point(number: int, case=None, series: Series = SERIES) -> Point:
    started = f"2026-01-0{number}"
    return Point(night=f"n{number}", started=started, series=series, case=case or case_result(number))


def on(gpu: str, number: int, live: int = GiB) -> Point:
    """A night on a card."""
    case = case_result(number, live=live)
    assert case.key is not None
    return point(number, replace(case, key=replace(case.key, backend="cuda", gpu=gpu)))


def untestable(number: int) -> Point:
    return point(number, replace(case_result(number, Status.UNTESTABLE), values={}, key=None))


def test_changes_are_from_one_measured_night_to_the_next() -> None:
    missed = replace(case_result(2), status=Status.UNTESTABLE, values={}, key=None)
    (trend,) = trends([point(1), point(2, missed), point(3, case_result(3, live=GiB + MiB))], "peak_requested")
    assert [entry.value for entry in trend.entries] == [GiB, None, GiB + MiB]
    assert [entry.change for entry in trend.entries] == [None, None, MiB]


def test_under_other_conditions_the_trend_starts_anew() -> None:
    moved = case_result(2, live=2 * GiB)
    assert moved.key is not None
    moved = replace(moved, key=replace(moved.key, torch="9.9"))
    (trend,) = trends([point(1), point(2, moved), point(3, moved)], "peak_requested")
    assert [entry.is_comparable for entry in trend.entries] == [True, False, True]
    assert [entry.change for entry in trend.entries] == [None, None, 0]


def test_each_suite_and_case_has_a_trend_of_its_own() -> None:
    other = Series(suite="/other.yaml")
    points = [point(1), point(1, series=other), point(2), point(1, case_result(1, name="b"))]
    found = trends(points, "peak_requested")
    assert [(trend.label, len(trend.entries)) for trend in found] == [
        ("tiny (/other.yaml)", 1),
        ("b (memory.yaml)", 1),
        ("tiny (memory.yaml)", 2),
    ]
    assert found[2].to_json()["nights"][0]["commit"] == f"{1:040x}"


def test_each_card_has_a_trend_of_its_own_and_a_night_without_a_number_is_one_of_each() -> None:
    points = [point(1), on("H100", 2, 2 * GiB), untestable(3), point(4, case_result(4, live=GiB + 1)), on("H100", 5)]
    simulated, real = trends(points, "peak_requested")
    assert (simulated.label, real.label) == ("tiny (memory.yaml, virtual h100-80gb)", "tiny (memory.yaml, cuda H100)")
    assert [entry.value for entry in simulated.entries] == [GiB, None, GiB + 1]
    assert [entry.change for entry in simulated.entries] == [None, None, 1]
    assert [entry.value for entry in real.entries] == [2 * GiB, None, GiB]
    (never,) = trends([untestable(1)], "peak_requested")
    assert (never.label, never.backend, never.change, never.step) == ("tiny (memory.yaml)", None, None, None)


def grown(*values: int) -> Trend:
    (trend,) = trends(
        [point(at, case_result(at, live=GiB + value)) for at, value in enumerate(values, start=1)], "peak_requested"
    )
    return trend


@pytest.mark.parametrize(
    ("values", "change", "step"),
    [
        ((0,), None, None),
        ((0, 0, 0), 0, None),
        ((0, 5, 5, 7), 7, (2, 5)),
        ((0, 5, 0, 7), 7, (4, 7)),
        ((0, 9, 0, 3), 3, (2, 9)),
        ((9, 0, 4), -5, (2, -9)),
        ((0, 3, 6), 6, (3, 3)),
        ((0, 3, 0), 0, (2, 3)),
    ],
)
def test_the_reported_step_is_the_largest_in_the_direction_of_the_trend(values, change, step) -> None:
    trend = grown(*values)
    found = trend.step
    assert trend.change == change
    assert (found and (int(found.after.night[1:]), found.change)) == step


@pytest.mark.parametrize(("band", "step"), [(0, 5), (4, 5), (5, None)])
def test_a_step_inside_the_band_that_warns_is_none(band: int, step: int | None) -> None:
    row = MetricRow(name="peak_requested", status=Status.SAME, expected=GiB, measured=GiB, warn=band, fail=9)
    cases = [replace(case_result(at, live=GiB + value), rows=(row,)) for at, value in enumerate((0, 5, 8), start=1)]
    (trend,) = trends([point(at, case) for at, case in enumerate(cases, start=1)], "peak_requested")
    assert trend.change == 8
    assert (trend.step and trend.step.change) == step


def test_worse_comes_first_then_what_has_no_answer_then_what_grew_most() -> None:
    worse = trends([point(1, case_result(1, Status.WORSE))], "peak_requested")
    broken = trends([untestable(1)], "peak_requested")
    found = sorted((grown(5, 0), grown(0, 5), *broken, grown(0, 9), *worse), key=lambda trend: trend.gravity)
    assert [(str(trend.status), trend.change) for trend in found] == [
        ("worse", None),
        ("untestable", None),
        ("same", 9),
        ("same", 5),
        ("same", -5),
    ]
