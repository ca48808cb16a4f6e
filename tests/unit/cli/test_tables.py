from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from oomscope.cli.main import run
from oomscope.cli.terminal.output import BISECT_TABLES, PROBE_TABLES, write_tables
from oomscope.probe.job import ProbeJob
from oomscope.snapshot.trace import Action, Frame, Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB
from tests.trace_builder import TraceBuilder
from tests.unit.report import results, searches

WITHOUT_EVENTS = [f"{name}.csv" for name in PROBE_TABLES if name != "events"]


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[ProbeJob]:
    """A launcher that measures nothing and writes a snapshot of one allocation; returns the jobs it was given."""
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, 4096, stack=(Frame("/src/train.py", 3, "step"),))
    snapshot = Snapshot(segments=(), traces=(builder.build(),))
    jobs = []

    def launch(job, progress=None):
        jobs.append(job)
        if job.snapshot_path:
            write_snapshot(snapshot, job.snapshot_path)
        return replace(results.OOM, snapshot=job.snapshot_path)

    monkeypatch.setattr("oomscope.probe.process.warm.run", launch)
    monkeypatch.setattr("oomscope.probe.process.warm.prepare", lambda **_: None)
    return jobs


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_a_probe_writes_its_tables(probed, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "tables"
    assert run(["probe", "--preset", "gpt-tiny", "--csv", str(folder), "--quiet"]) == 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(WITHOUT_EVENTS)
    assert capsys.readouterr().err.splitlines() == [f"Wrote {folder / name}" for name in WITHOUT_EVENTS]
    assert sum(int(row["bytes"]) for row in rows(folder / "sites.csv")) == 6 * GiB
    assert [row["failed_event"] for row in rows(folder / "tried.csv")] == ["99", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_with_a_snapshot_come_the_events(probed, tmp_path: Path, capsys) -> None:
    snapshot = str(tmp_path / "s.pickle")
    assert run(["probe", "--preset", "gpt-tiny", "--csv", str(tmp_path), "--snapshot", snapshot]) == 3
    (event,) = rows(tmp_path / "events.csv")
    assert (event["event"], event["action"], event["size"]) == ("0", "alloc", "4096")
    assert event["site"] == "/src/train.py:3 step"
    assert capsys.readouterr().err.splitlines()[-1] == f"Wrote {tmp_path / 'events.csv'}"


def test_a_search_writes_its_tables(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr("oomscope.bisect.commit_bisect.bisect_commits", lambda *_, **__: searches.COMMITS)
    arguments = ["bisect", "v1..v2", "--config", "a.yaml", "--csv", str(tmp_path / "tables"), "--quiet"]
    assert run(arguments) == 0
    written = [tmp_path / "tables" / f"{name}.csv" for name in BISECT_TABLES]
    assert capsys.readouterr().err.splitlines() == [f"Wrote {file}" for file in written]
    assert sorted((tmp_path / "tables").iterdir()) == sorted(written)
    grown = rows(tmp_path / "tables" / "grown_sites.csv")
    assert sum(int(row["delta_bytes"]) for row in grown) == searches.CHANGE.requested_bytes
    assert run(arguments) == 2


@pytest.mark.parametrize("command", [["probe", "--preset", "gpt-tiny"], ["bisect", "v1..v2", "--config", "a.yaml"]])
def test_places_that_cannot_hold_tables_are_refused_first(probed, tmp_path: Path, capsys, command) -> None:
    file = tmp_path / "file"
    file.touch()
    for place, words in ((file, "is not a directory"), (tmp_path / "no" / "tables", "its folder does not exist")):
        assert run([*command, "--csv", str(place), "--force"]) == 2
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.err.count("\n") == 1
    assert probed == []


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(0)", "'=HYPERLINK(0)"),
        ("- drop a line", "'- drop a line"),
        ("a\x1b[31m\u202eb", "a\\x1b[31m\\u202eb"),
        ("Clip gradients", "Clip gradients"),
    ],
)
def test_cells_are_neither_formulas_nor_control_sequences(tmp_path: Path, text: str, cell: str) -> None:
    write_tables(tmp_path, {"sites": pd.DataFrame({"category": pd.array([text], "string")})}, PROBE_TABLES)
    assert rows(tmp_path / "sites.csv")[0]["category"] == cell
