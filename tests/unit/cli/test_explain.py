"""``oomscope explain``: its report, document, tables, page and picture, and names that it takes out of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn

FIXTURES = Path(__file__).parents[3] / "fixtures" / "snapshots"
OOM = str(FIXTURES / "torch-2.13-oom.pickle.zst")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run(["explain", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The snapshot of a job that fails."""
    return str(write_snapshot(drawn.failing("secret_forward"), tmp_path_factory.mktemp("job") / "ada.pickle"))


def test_a_page_and_a_picture_are_written_beside_the_report(file: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    page, picture = tmp_path / "out.html", tmp_path / "out.png"
    assert run(["explain", file, "--html", str(page), "--png", str(picture)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].startswith("OUT OF MEMORY asking for 60.00 MiB")
    assert said.err.splitlines() == [f"Wrote {page}", f"Wrote {picture}"]
    assert "<h1>ada.pickle</h1>" in page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(["explain", file, "--html", str(page)]) == 2
    assert "file exists" in capsys.readouterr().err
    assert run(["explain", file, "--html", str(page), "--force"]) == 0


def test_a_folder_has_a_page_of_its_ranks_and_the_worst(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        write_snapshot(drawn.failing(), folder / f"snap-{rank}.pickle")
    page = tmp_path / "ranks.html"
    assert run(["explain", str(folder), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "OUT OF MEMORY on 2 ranks of 2" in text
    assert "The worst rank, 0" in text
    assert text.count("data-timeline=") == 1


def test_all_names_are_taken_out_of_page_document_and_text(file: str, tmp_path: Path, capsys) -> None:
    page = tmp_path / "r.html"
    assert run(["explain", file, "--redact", "all", "--html", str(page)]) == 0
    said = [capsys.readouterr().out, page.read_text(encoding="utf-8")]
    assert run(["explain", file, "--redact", "all", "--json"]) == 0
    said.append(capsys.readouterr().out)
    assert json.loads(said[-1])["file"] == "snapshot1"
    for text in said:
        assert not [name for name in ("ada", "model.py", "secret_forward", str(tmp_path.parent)) if name in text]
