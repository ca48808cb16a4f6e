from __future__ import annotations

from pathlib import Path

from oomscope.cli.terminal.output import keep_log, write_file


def test_half_a_character_is_kept_as_an_escape(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = keep_log("na\udcffme")
    assert log is not None
    assert log.read_bytes() == b"na\\udcffme"
    write_file(tmp_path / "page.html", "na\udcffme")
    assert (tmp_path / "page.html").read_bytes() == b"na\\udcffme"
