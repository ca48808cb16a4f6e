from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.cli.terminal.output_files import (
    BISECT_TABLES,
    PROBE_TABLES,
    bisect_tables,
    probe_tables,
    refuse_existing_tables,
    write_tables,
)
from oomscope.errors import InputError
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.trace import Action, Frame, Snapshot
from oomscope.snapshot.write import write_snapshot
from oomscope.units import GiB
from tests.unit.report import results, searches

JOB = ProbeJob(target=BundledTarget(config={}))
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

    monkeypatch.setattr("oomscope.probe.process.launch.run", launch)
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


def test_a_table_that_somebody_else_wrote_meanwhile_stays(probed, tmp_path: Path) -> None:
    refuse_existing_tables(tmp_path, BISECT_TABLES, force=False)
    other = tmp_path / f"{BISECT_TABLES[0]}.csv"
    other.write_text("the other's")
    with pytest.raises(InputError, match="somebody else wrote it meanwhile"):
        write_tables(tmp_path, bisect_tables(searches.COMMITS), BISECT_TABLES)
    assert other.read_text() == "the other's"


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


def test_nothing_measured_is_a_header(tmp_path: Path) -> None:
    write_tables(tmp_path, probe_tables(results.BROKEN, JOB), PROBE_TABLES)
    assert (tmp_path / "sites.csv").read_text() == "file,line,function,module,category,bytes,count\n"


def test_tables_are_not_overwritten_unless_forced(probed, tmp_path: Path, capsys) -> None:
    (tmp_path / "events.csv").write_text("of an earlier probe")
    (tmp_path / "notes.txt").write_text("mine")
    arguments = ["probe", "--preset", "gpt-tiny", "--csv", str(tmp_path)]
    assert run(arguments) == 2
    assert "events.csv: file exists" in capsys.readouterr().err
    assert probed == []
    assert run([*arguments, "--force"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*WITHOUT_EVENTS, "notes.txt"])


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


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch, exists: bool) -> None:
    folder = tmp_path / "tables"
    if exists:
        folder.mkdir()
        (folder / "steps.csv").write_text("old")
    calls = []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_tables(folder, bisect_tables(searches.COMMITS), BISECT_TABLES)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.csv")] == ["tables/steps.csv"] * exists
    assert not exists or (folder / "steps.csv").read_text() == "old"
    assert len(list(tmp_path.rglob("*"))) == 2 * exists


@pytest.mark.parametrize(("options", "loaded"), [([], False), (["--csv", "tables"], True)])
def test_pandas_is_loaded_only_for_tables(tmp_path: Path, options: list[str], loaded: bool) -> None:
    code = (
        "import sys\n"
        "from oomscope.bisect import commit_bisect\n"
        "from oomscope.cli.main import run\n"
        "from tests.unit.report import searches\n"
        "commit_bisect.bisect_commits = lambda *_, **__: searches.COMMITS\n"
        f"run(['bisect', 'v1..v2', '--config', 'a.yaml', *{options!r}])\n"
        "print('pandas' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == str(loaded)


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
    oom = replace(results.OOM, peak=replace(results.PEAK, sites=(replace(results.SITES[0], category=text),)))
    write_tables(tmp_path / "tables", probe_tables(oom, JOB), PROBE_TABLES)
    assert rows(tmp_path / "tables" / "sites.csv")[0]["category"] == cell


def test_names_in_events_are_harmless_too(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.event(Action.ALLOC, 0, 4096, stack=(Frame("/src/train.py", 3, "=step\x1b"),))
    file = write_snapshot(Snapshot(segments=(), traces=(builder.build(),)), tmp_path / "trace.pickle")
    write_tables(tmp_path / "tables", probe_tables(replace(results.OOM, snapshot=str(file)), JOB), PROBE_TABLES)
    (row,) = rows(tmp_path / "tables" / "events.csv")
    assert "\\x1b" in row["site"]
