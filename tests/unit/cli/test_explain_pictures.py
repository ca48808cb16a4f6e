"""``oomscope explain`` writes its page and its picture, and takes names out of all that it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn


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
