"""The ledger loses nothing to other writers or to a kill, and says in one line what is wrong with its file."""

from __future__ import annotations

import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import InputError
from oomscope.gate.ledger.ledger import Ledger
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Home, Series
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night

SUITE = Series(suite="/repo/memory.yaml")


def commit_of(number: int) -> str:
    standing = case_result(number).standing
    assert standing is not None
    return standing.commit


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    with Ledger(tmp_path / "new" / "gate.sqlite") as ledger:
        assert ledger.put(night(1))
        assert not ledger.put(night(1))
        assert ledger.put(night(2, case_result(2, live=2 * GiB), case_result(2, name="other")))
        assert [point.case for point in ledger.points("tiny")] == [case_result(1), case_result(2, live=2 * GiB)]
        assert [point.night for point in ledger.points("tiny", last=1)] == ["night0002"]
        assert ledger.points("tiny", suite=Series(suite="elsewhere")) == []


def test_nights_of_a_suite_are_one_series_wherever_the_checkout_lay(tmp_path: Path) -> None:
    home = Home(path="ci/memory.yaml", first_commit="a" * 40)
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number in range(4):
            ledger.put(replace(night(number), suite=f"/builds/{9 - number}/ci/memory.yaml", home=home))
        ledger.put(replace(night(4), suite="/elsewhere.yaml"))
        one = Series(suite="ci/memory.yaml", repository="a" * 10)
        assert {point.series for point in ledger.points()} == {one, Series(suite="/elsewhere.yaml")}
        assert [point.night for point in ledger.points(last=2)] == ["night0004", "night0002", "night0003"]
        assert [point.night for point in ledger.points(suite=one)] == [f"night{number:04}" for number in range(4)]


def test_a_green_commit_is_another_clean_one_under_the_same_key(tmp_path: Path) -> None:
    standing = case_result(3).standing
    assert standing is not None
    nights = [
        night(1, case_result(1)),
        night(2, case_result(2, Status.WARN)),
        night(3, replace(case_result(3), standing=replace(standing, dirty=True))),
        night(4, case_result(4, Status.WORSE)),
        night(5, replace(case_result(5), standing=None)),
    ]
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for one in nights:
            ledger.put(one)
        worse = case_result(4, Status.WORSE)
        assert ledger.green_commits(worse, SUITE) == {commit_of(1), commit_of(2)}
        assert ledger.green_commits(case_result(2), SUITE) == {commit_of(1)}
        assert ledger.green_commits(case_result(2), Series(suite="/elsewhere.yaml")) == set()
        other = case_result(4)
        assert other.key is not None
        moved = replace(other, key=replace(other.key, torch="9.9"))
        assert ledger.green_commits(moved, SUITE) == set()


def test_of_several_nights_of_a_commit_the_last_that_measured_counts(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number, status in enumerate([Status.SAME, Status.WORSE, Status.UNTESTABLE]):
            ledger.put(night(number, case_result(7, status)))
        assert ledger.green_commits(case_result(9), SUITE) == set()
        ledger.put(night(8, case_result(7)))
        assert ledger.green_commits(case_result(9), SUITE) == {commit_of(7)}


def test_what_an_older_baseline_allowed_is_no_green_commit_of_today(tmp_path: Path) -> None:
    row = MetricRow(name="peak_requested", status=Status.WORSE, expected=GiB, measured=3 * GiB, warn=0, fail=0)
    now = replace(case_result(9, Status.WORSE), rows=(row,))
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        ledger.put(night(1, case_result(1)))
        ledger.put(night(2, case_result(2, live=2 * GiB)))
        assert ledger.green_commits(now, SUITE) == {commit_of(1)}
        out = replace(now, rows=(), outcome="oom")
        assert ledger.green_commits(out, SUITE) == {commit_of(1), commit_of(2)}


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 5):
            with Ledger(tmp_path / "gate.sqlite") as ledger:
                ledger.put(night(number, *(case_result(number, name=f"case{index}") for index in range(20))))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (0, 100)))
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        nights = Counter(point.night for point in ledger.points())
    assert (len(nights), set(nights.values())) == (10, {20})


def test_other_databases_and_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (a)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="something else"):
        Ledger(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    path = tmp_path / "gate.sqlite"
    Ledger(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 9")
    newer.commit()
    newer.close()
    with pytest.raises(InputError, match="version 9"):
        Ledger(path)
