from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.snapshot.write import write_snapshot
from tests.unit.report.differences import AFTER, BEFORE, snapshot

A = "/src/tinytrain/model.py"


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two snapshots: before, after."""
    return [
        str(write_snapshot(snapshot(blocks), tmp_path / name))
        for blocks, name in ((BEFORE, "a.pickle"), (AFTER, "b.pickle"))
    ]


def test_the_document_sums(files: list[str], capsys) -> None:
    assert run(["diff", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 3
    assert (document["before_file"], document["after_file"]) == tuple(files)
    (device,) = document["devices"]
    for table in ("lines", "categories", "modules", "sizes"):
        assert sum(row["delta_bytes"] for row in device[table]) == device["delta_bytes"]
    moved = [row for row in device["lines"] if row["moved"]]
    assert {(row["was"]["line"], row["site"]["line"]) for row in moved} == {(10, 13), (22, 25)}


def test_pages_and_tables_are_written_beside_the_report(files: list[str], tmp_path: Path, capsys) -> None:
    page, folder = tmp_path / "d.html", tmp_path / "tables"
    assert run(["diff", *files, "--html", str(page), "--csv", str(folder)]) == 0
    assert "a.pickle against b.pickle" in page.read_text(encoding="utf-8")
    assert capsys.readouterr().err.splitlines() == [
        f"Wrote {place}" for place in (page, folder / "changed_lines.csv", folder / "changed_totals.csv")
    ]
    with (folder / "changed_lines.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert sum(int(row["delta_bytes"]) for row in lines) == 134 * 2**20
    assert {(row["presence"], row["before_line"], row["line"]) for row in lines if row["function"] == "forward"} == {
        ("both", "10", "13"),
        ("both", "22", "25"),
    }
    with (folder / "changed_totals.csv").open(encoding="utf-8", newline="") as file:
        totals = list(csv.DictReader(file))
    for by in ("category", "module", "size"):
        assert sum(int(row["delta_bytes"]) for row in totals if row["by"] == by) == 134 * 2**20
    assert run(["diff", *files, "--html", str(page)]) == 2
    assert "file exists" in capsys.readouterr().err


def test_two_folders_are_compared_rank_by_rank(tmp_path: Path, capsys) -> None:
    for folder, ranks in (("old", (BEFORE, BEFORE, BEFORE)), ("new", (BEFORE, AFTER))):
        (tmp_path / folder).mkdir()
        for rank, blocks in enumerate(ranks):
            write_snapshot(snapshot(blocks), tmp_path / folder / f"snap-{rank}.pickle")
    folders = [str(tmp_path / "old"), str(tmp_path / "new")]
    assert run(["diff", *folders, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["rank"], row["delta_bytes"] >> 20) for row in document["devices"]] == [(1, 134), (0, 0)]
    assert document["only_before"] == [2]
    assert run(["diff", *folders, "--html", str(tmp_path / "d.html")]) == 0
    text = capsys.readouterr().out
    assert "Rank 1, device 0, which grew most" in text
    assert "only A has rank 2: not compared" in text
    assert "Rank 0, device 0" in (tmp_path / "d.html").read_text(encoding="utf-8")
    assert run(["diff", folders[0], str(tmp_path / "new" / "snap-0.pickle")]) == 2
    assert "is a folder and" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["diff", folders[0], str(tmp_path / "empty")]) == 2
    assert "no snapshot files in it" in capsys.readouterr().err


@pytest.mark.parametrize("printed", [[], ["--json"]])
def test_what_is_hidden_is_nowhere(files: list[str], tmp_path: Path, printed: list[str], capsys) -> None:
    page, folder = tmp_path / "d.html", tmp_path / "tables"
    outputs = ["--html", str(page), "--csv", str(folder), *printed]
    assert run(["diff", *files, "--redact", "source", *outputs]) == 0
    text = capsys.readouterr().out + page.read_text(encoding="utf-8")
    text += "".join(file.read_text(encoding="utf-8") for file in folder.iterdir())
    assert "file1.py" in text
    for hidden in ("model.py", "tinytrain", "mask", str(tmp_path)):
        assert hidden not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "3"], "it holds nothing of device 3; it has device 0"),
        (["--phase", "step"], "device 0 has no phase step; it has forward, optimizer"),
        (["--by", "colour"], "'colour' is not one of"),
        (["--html", "a.pickle"], "name one file"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, message, files, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["diff", *files, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
