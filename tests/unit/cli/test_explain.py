"""The command line of an explanation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run

FIXTURES = Path(__file__).parents[3] / "fixtures" / "snapshots"
OOM = str(FIXTURES / "torch-2.13-oom.pickle.zst")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run(["explain", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_explained_oom_is_an_answer_and_no_failure(capsys):
    assert run(["explain", OOM]) == 0
    assert "OUT OF MEMORY asking for 9.00 MiB" in capsys.readouterr().out


def test_json(capsys):
    found = document(capsys, OOM)
    assert found["schema_version"] == 3
    assert found["file"] == OOM
    [device] = found["devices"]
    assert device["verdict"]["kind"] == "fragmentation"
    assert device["available_bytes"] == 64 * 2**20
    assert sum(row["bytes"] for row in device["categories"]) == device["peak"]["requested_bytes"]


def test_a_card_of_the_users_replaces_that_of_the_failure(capsys):
    [device] = document(capsys, OOM, "--limit", "40MiB")["devices"]
    assert device["verdict"]["event"] < 97, "that card refuses an earlier request"
    assert device["verdict"]["tags"] == ["later: capacity"]
    assert device["available_bytes"] == 40 * 2**20
    [device] = document(capsys, OOM, "--gpu", "h100-80gb", "--non-torch", "1GiB")["devices"]
    assert "1.00 GiB of it outside PyTorch" in device["available_source"]


def test_a_folder_is_explained_by_its_worst_rank(capsys):
    found = document(capsys, str(FIXTURES / "ranks"))
    assert [row["rank"] for row in found["ranks"]] == [3, 0, 1, 2]
    assert found["worst"]["rank"] == 3
    assert len(found["worst"]["devices"]) == 1


def test_tables_are_written_and_not_overwritten(capsys, tmp_path: Path):
    words = ["explain", OOM, "--csv", str(tmp_path / "out")]
    assert run(words) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "categories.csv",
        "modules.csv",
        "pins.csv",
        "sites.csv",
        "timeline.csv",
        "tried.csv",
    ]
    capsys.readouterr()
    assert run(words) == 2
    assert "file exists" in capsys.readouterr().err
    assert run([*words, "--force"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.pickle"], "missing.pickle: cannot read"),
        ([OOM, "--device", "4"], "nothing on device 4; it knows these devices: 0"),
        ([OOM, "--limit", "1GiB", "--gpu", "h100"], "name one card"),
        ([OOM, "--torch-version", "newest"], "'newest' is no torch version"),
        ([OOM, "--top", "0"], "0 is not in the range"),
        ([str(FIXTURES / "build.py")], "build.py"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys):
    assert run(["explain", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
