"""``oomscope explain`` writes its page and its picture, and takes names out of all that it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.cli.main import run
from oomscope.errors import ExitCode
from oomscope.snapshot.write import write_snapshot
from tests.unit.report import drawn


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The snapshot of a job that fails."""
    return str(write_snapshot(drawn.failing("secret_forward"), tmp_path_factory.mktemp("job") / "ada.pickle"))


@pytest.mark.parametrize("lost", ["html.pages.explain_page", "charts.pictures.explain_picture"])
def test_a_file_that_cannot_be_written_in_the_end_takes_no_report_with_it(
    file: str, tmp_path: Path, monkeypatch, capsys, lost: str
) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    page, picture, folder = tmp_path / "out.html", tmp_path / "out.png", tmp_path / "tables"
    refused = page if "html" in lost else picture

    def raced(*_args: object) -> bytes:
        refused.write_text("theirs")
        return b"ours"

    monkeypatch.setattr(f"oomscope.report.{lost}", raced)
    words = ["explain", file, "--html", str(page), "--png", str(picture), "--csv", str(folder)]
    assert run(words) == ExitCode.OUTPUT_LOST
    said = capsys.readouterr()
    assert said.out.splitlines()[1].startswith("OUT OF MEMORY asking for 60.00 MiB")
    assert f"{refused}: file exists: somebody else wrote it meanwhile" in said.err
    assert refused.read_text() == "theirs"
    assert all(place.exists() for place in (page, picture, folder / "sites.csv"))


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


def test_a_page_never_takes_the_place_of_the_snapshot(file: str, capsys) -> None:
    assert run(["explain", file, "--html", file, "--force"]) == 2
    assert "name one file" in capsys.readouterr().err


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


def test_without_a_picture_nothing_of_it_is_imported(file: str) -> None:
    program = (
        "import sys\nfrom oomscope.cli.main import run\n"
        f"run(['explain', {file!r}])\n"
        "heavy = ('jinja2', 'matplotlib', 'torch', 'oomscope.snapshot.explain.drawing')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [["explain", "FILE"], ["sweep", "FILE"], ["gate", "history"]])
@pytest.mark.parametrize("name", ["out.jpg", "out.SVG", "out.pdf"])
def test_no_picture_goes_by_the_name_of_another_kind(file: str, tmp_path: Path, capsys, command, name: str) -> None:
    picture = tmp_path / name
    words = [file if word == "FILE" else word for word in command]
    assert run([*words, "--png", str(picture)]) == ExitCode.USAGE
    assert f"'{picture}' would hold a PNG picture; end its name in .png" in capsys.readouterr().err
    assert not picture.exists()
