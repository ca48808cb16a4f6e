"""The ledger loses nothing to other writers or to a kill, and says in one line what is wrong with its file."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.errors import InputError
from oomscope.gate.ledger.ledger import Ledger, default_ledger
from oomscope.gate.night.compare import MetricRow
from oomscope.gate.night.status import Status
from oomscope.gate.suite.identity import Home, Place, Series
from oomscope.units import GiB
from tests.unit.gate.nights import case_result, night

SUITE = "/repo/memory.yaml"
ROOT = Path(__file__).resolve().parents[3]
WRITER = """
import sys
from pathlib import Path
from oomscope.gate.ledger.ledger import Ledger
from tests.unit.gate.nights import case_result, night
first, last = int(sys.argv[2]), int(sys.argv[3])
for number in range(first, last):
    with Ledger(Path(sys.argv[1])) as ledger:
        ledger.add(night(number, *(case_result(number, name=f"case{index}") for index in range(20))))
    print(number, flush=True)
"""


def writer(path: Path, first: int, last: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(last)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def commit_of(number: int) -> str:
    standing = case_result(number).standing
    assert standing is not None
    return standing.commit


def whole_nights(path: Path) -> set[str]:
    """Return the nights, all of which must have their twenty cases."""
    with Ledger(path) as ledger:
        points = ledger.points()
    names = [point.night for point in points]
    assert all(names.count(name) == 20 for name in set(names))
    return set(names)


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    with Ledger(tmp_path / "new" / "gate.sqlite") as ledger:
        assert ledger.add(night(1))
        assert not ledger.add(night(1))
        assert ledger.add(night(2, case_result(2, live=2 * GiB), case_result(2, name="other")))
        assert [point.case for point in ledger.points("tiny")] == [case_result(1), case_result(2, live=2 * GiB)]
        assert [point.night for point in ledger.points("tiny", last=1)] == ["night0002"]
        assert ledger.points("tiny", suite=Place(path="elsewhere")) == []


def test_nights_of_a_suite_are_one_series_wherever_the_checkout_lay(tmp_path: Path) -> None:
    home = Home(path="ci/memory.yaml", first_commit="a" * 40)
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number in range(4):
            ledger.put(replace(night(number), suite=f"/builds/{9 - number}/ci/memory.yaml", home=home))
        ledger.put(replace(night(4), suite="/elsewhere.yaml"))
        one = Series(suite="ci/memory.yaml", repository="a" * 10)
        assert {point.series for point in ledger.points()} == {one, Series(suite="/elsewhere.yaml")}
        assert [point.night for point in ledger.points(last=2)] == ["night0004", "night0002", "night0003"]
        fresh = Place(path="/builds/10/ci/memory.yaml", home=home)
        assert [point.night for point in ledger.points(suite=fresh)] == [f"night{number:04}" for number in range(4)]


def test_what_is_put_takes_the_place_of_what_was_added(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        ledger.put(night(1))
        ledger.put(night(1, case_result(1, live=2 * GiB)))
        assert [point.case for point in ledger.points()] == [case_result(1, live=2 * GiB)]


def test_numbers_beyond_sqlite_stay_exact(tmp_path: Path) -> None:
    huge = replace(case_result(1), values={"flops": 2**70 + 1})
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        ledger.add(night(1, huge))
        assert ledger.points()[0].case.values["flops"] == 2**70 + 1


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
        assert ledger.green_commits(worse, suite=Place(path=SUITE)) == {commit_of(1), commit_of(2)}
        assert ledger.green_commits(case_result(2), suite=Place(path=SUITE)) == {commit_of(1)}
        assert ledger.green_commits(case_result(2), suite=Place(path="/elsewhere.yaml")) == set()
        other = case_result(4)
        assert other.key is not None
        moved = replace(other, key=replace(other.key, torch="9.9"))
        assert ledger.green_commits(moved, suite=Place(path=SUITE)) == set()


def test_nights_of_a_checkout_at_another_place_count_where_the_suite_lies_alike(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number, suite in enumerate(
            ["/builds/1/proj/ci/memory.yaml", "/builds/2/proj/memory.yaml", "/ci/other.yaml"]
        ):
            ledger.put(replace(night(number), suite=suite))
        now, suite = case_result(9), "/builds/3/proj/ci/memory.yaml"
        assert ledger.green_commits(now, suite=Place(path=suite)) == set()
        assert ledger.green_commits(now, suite=Place(path=suite), inside="ci/memory.yaml") == {commit_of(0)}


def test_a_suite_of_another_folder_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Its path ends alike, and may come of a repository that knows nothing of the commit, or too much."""
    inner, outer = "services/a/ci/memory.yaml", "ci/memory.yaml"
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number, (path, remote) in enumerate([(outer, "us/it"), (inner, "us/it"), (outer, "them/it")]):
            home = Home(path=path, remote=remote)
            ledger.put(replace(night(number), suite=f"/builds/{number}/it/{path}", home=home))
        ledger.put(replace(night(3), suite=f"/old/it/{outer}"))  # knows no repository
        here = Place(path=f"/builds/9/it/{outer}", home=Home(path=outer, remote="us/it"))
        assert ledger.green_commits(case_result(9), suite=here, inside=outer) == {commit_of(0), commit_of(3)}


def test_of_several_nights_of_a_commit_the_last_that_told_counts(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number, status in enumerate([Status.SAME, Status.WORSE, Status.UNTESTABLE]):
            ledger.put(night(number, case_result(7, status)))
        assert ledger.green_commits(case_result(9), suite=Place(path=SUITE)) == set()
        ledger.put(night(8, case_result(7)))
        assert ledger.green_commits(case_result(9), suite=Place(path=SUITE)) == {commit_of(7)}


def test_what_an_older_baseline_allowed_is_no_green_commit_of_today(tmp_path: Path) -> None:
    row = MetricRow(name="peak_requested", status=Status.WORSE, expected=GiB, measured=3 * GiB, warn=0, fail=0)
    now = replace(case_result(9, Status.WORSE), rows=(row,))
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        ledger.put(night(1, case_result(1)))
        ledger.put(night(2, case_result(2, live=2 * GiB)))
        assert ledger.green_commits(now, suite=Place(path=SUITE)) == {commit_of(1)}
        out = replace(now, rows=(), outcome="oom")
        assert ledger.green_commits(out, suite=Place(path=SUITE)) == {commit_of(1), commit_of(2)}


def test_a_clock_that_goes_back_reorders_no_nights(tmp_path: Path) -> None:
    clocks = ["2026-03-02T00:00:00+00:00", "2026-03-03T00:00:00+00:00", "1970-01-01T00:00:00+00:00"]
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number, started in enumerate(clocks):
            ledger.put(replace(night(number), started=started))
        ledger.put(replace(night(0), started=clocks[0]))
        assert [point.started for point in ledger.points("tiny")] == clocks
        assert [point.started for point in ledger.points("tiny", last=1)] == clocks[-1:]


def test_nights_from_elsewhere_stand_where_their_clock_says(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        for number in (1, 3):
            ledger.put(night(number))
        for number in (4, 0, 2):
            assert ledger.add(night(number))
        assert [point.night for point in ledger.points("tiny")] == [f"night{number:04}" for number in range(5)]


@pytest.mark.parametrize("lacking", [("home",), ("home", "place")])
def test_an_older_ledger_is_brought_up_to_date(tmp_path: Path, lacking: tuple[str, ...]) -> None:
    path = tmp_path / "gate.sqlite"
    with Ledger(path) as ledger:
        for number in range(3):
            ledger.put(night(number))
    older = sqlite3.connect(path)
    for column in lacking:
        older.execute(f"ALTER TABLE nights DROP COLUMN {column}")
    older.execute(f"PRAGMA user_version = {3 - len(lacking)}")
    older.close()
    home = Home(path="memory.yaml", first_commit="a" * 40)
    with Ledger(path) as ledger:
        assert [point.night for point in ledger.points("tiny")] == [f"night{number:04}" for number in range(3)]
        ledger.put(replace(night(3), home=home))
    with Ledger(path) as ledger:
        found = ledger.points("tiny")
        assert [point.night for point in found] == [f"night{number:04}" for number in range(4)]
        assert {point.series.suite for point in found} == {"memory.yaml"}


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gate.sqlite"
    writers = [writer(path, 100 * number, 100 * number + 10) for number in range(3)]
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert len(whole_nights(path)) == 30


def test_a_kill_in_mid_write_loses_no_night_that_was_told(tmp_path: Path) -> None:
    path, told, draw = tmp_path / "gate.sqlite", set(), random.Random(1)
    for round_ in range(2):
        process = writer(path, 1000 * round_, 1000 * round_ + 1000)
        assert process.stdout is not None
        told.add(int(process.stdout.readline()))
        time.sleep(draw.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=60)
        told |= {int(line) for line in said.splitlines() if line}
    assert {f"night{number:04}" for number in told} <= whole_nights(path)
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"not a database at all, but some text that is long enough" * 40, "is damaged, or no ledger"), (b"", None)],
)
def test_a_file_that_is_no_ledger_is_one_line(tmp_path: Path, content: bytes, said: str | None) -> None:
    path = tmp_path / "gate.sqlite"
    path.write_bytes(content)
    if said is None:
        Ledger(path).close()  # an empty file becomes one
        return
    with pytest.raises(InputError, match=said) as caught:
        Ledger(path)
    assert "oomscope gate import" in str(caught.value)
    assert path.read_bytes() == content


def test_damage_is_one_line_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "gate.sqlite"
    with Ledger(path) as ledger:
        for number in range(30):
            ledger.add(night(number, *(case_result(number, name=f"case{index}") for index in range(10))))
    whole, draw = path.read_bytes(), random.Random(2)
    for _ in range(20):
        at = draw.randrange(len(whole) - 600)
        path.write_bytes(whole[:at] + draw.randbytes(600) + whole[at + 600 :])
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        try:
            with Ledger(path) as ledger:
                ledger.points()
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - damage that hits no row is none
            assert str(path) in str(error)  # noqa: PT017


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


def test_a_night_is_on_the_disk_before_it_is_told(tmp_path: Path) -> None:
    with Ledger(tmp_path / "gate.sqlite") as ledger:
        settings = [ledger._connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
    assert settings == [("wal",), (2,)]  # 2 is FULL: each transaction is synchronised


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory"])
def test_a_ledger_of_any_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for is_new in (True, False):
        with Ledger(Path(name)) as ledger:
            assert ledger.add(night(1)) == is_new
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_place_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="give --ledger"):
        Ledger(tmp_path / "file" / "gate.sqlite")
    with pytest.raises(InputError, match="give --ledger"):
        Ledger(tmp_path)


def test_the_default_place_follows_xdg() -> None:
    assert default_ledger({"XDG_STATE_HOME": "/state"}) == Path("/state/oomscope/gate.sqlite")
    assert default_ledger({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/oomscope/gate.sqlite"
