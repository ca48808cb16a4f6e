from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.cli.terminal.output import keep_log, refuse_existing, write_file
from oomscope.errors import InputError


def test_a_file_is_replaced_whole(tmp_path: Path, capsys) -> None:
    file = tmp_path / "a.html"
    file.write_text("old")
    write_file(file, "new")
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    assert capsys.readouterr().err == f"Wrote {file}\n"


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "a.html"
    file.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_file(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_refusals(tmp_path: Path) -> None:
    file = tmp_path / "a.html"
    refuse_existing(None, force=False, option="--html")
    refuse_existing(file, force=False, option="--html")
    file.touch()
    refuse_existing(file, force=True, option="--html")
    with pytest.raises(InputError, match="--force"):
        refuse_existing(file, force=False, option="--html")


def test_half_a_character_is_kept_as_an_escape(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = keep_log("na\udcffme")
    assert log is not None
    assert log.read_bytes() == b"na\\udcffme"
    write_file(tmp_path / "page.html", "na\udcffme")
    assert (tmp_path / "page.html").read_bytes() == b"na\\udcffme"
