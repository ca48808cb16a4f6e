from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.cli.terminal.output import keep_log, write_file
from oomscope.errors import InputError


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


def test_half_a_character_is_kept_as_an_escape(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = keep_log("na\udcffme")
    assert log is not None
    assert log.read_bytes() == b"na\\udcffme"
    write_file(tmp_path / "page.html", "na\udcffme")
    assert (tmp_path / "page.html").read_bytes() == b"na\\udcffme"
