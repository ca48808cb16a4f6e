"""Trends: what changed since when, and where they begin afresh."""

from __future__ import annotations

from dataclasses import replace

from oomscope.gate.history import trends
from oomscope.gate.ledger import Point
from oomscope.gate.status import Status
from oomscope.units import GiB, MiB
from tests.unit.gate.nights import case_result


def point(number: int, case=None, suite: str = "/repo/memory.yaml") -> Point:
    return Point(night=f"n{number}", started=f"2026-01-0{number}", suite=suite, case=case or case_result(number))


def test_changes_are_from_one_measured_night_to_the_next() -> None:
    missed = replace(case_result(2), status=Status.UNTESTABLE, values={}, key=None)
    (trend,) = trends([point(1), point(2, missed), point(3, case_result(3, live=GiB + MiB))], "peak_live")
    assert [entry.value for entry in trend.entries] == [GiB, None, GiB + MiB]
    assert [entry.change for entry in trend.entries] == [None, None, MiB]
    assert trend.values == [GiB, GiB + MiB]


def test_under_other_conditions_the_trend_begins_afresh() -> None:
    moved = case_result(2, live=2 * GiB)
    assert moved.key is not None
    moved = replace(moved, key=replace(moved.key, torch="9.9"))
    (trend,) = trends([point(1), point(2, moved), point(3, moved)], "peak_live")
    assert [entry.is_comparable for entry in trend.entries] == [True, False, True]
    assert [entry.change for entry in trend.entries] == [None, None, 0]


def test_each_suite_and_case_has_a_trend_of_its_own() -> None:
    points = [point(1), point(1, suite="/other.yaml"), point(2), point(1, case_result(1, name="b"))]
    found = trends(points, "peak_live")
    assert [(trend.suite, trend.name, len(trend.entries)) for trend in found] == [
        ("/other.yaml", "tiny", 1),
        ("/repo/memory.yaml", "b", 1),
        ("/repo/memory.yaml", "tiny", 2),
    ]
    assert found[2].to_json()["nights"][0]["commit"] == f"{1:040x}"
