from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from oomscope.probe.machine.fingerprint import PACKAGES, fingerprint, sources_hash


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "sub" / "preset.yaml").write_text("seq: 1\n")
    return tmp_path


def test_any_byte_of_any_source_counts(tree: Path) -> None:
    before = sources_hash(tree)
    assert before == sources_hash(tree)
    for path, text in ((tree / "a.py", "x = 2\n"), (tree / "sub" / "preset.yaml", "seq: 2\n")):
        old = path.read_text()
        path.write_text(text)
        assert sources_hash(tree) != before
        path.write_text(old)
    assert sources_hash(tree) == before


def test_names_count_and_bytecode_does_not(tree: Path) -> None:
    before = sources_hash(tree)
    (tree / "__pycache__").mkdir()
    (tree / "__pycache__" / "a.pyc").write_bytes(b"1")
    assert sources_hash(tree) == before
    (tree / "a.py").rename(tree / "b.py")
    assert sources_hash(tree) != before


def test_bytes_cannot_move_between_files_unnoticed(tree: Path) -> None:
    (tree / "a.py").write_text("ab")
    (tree / "b.py").write_text("c")
    before = sources_hash(tree)
    (tree / "a.py").write_text("a")
    (tree / "b.py").write_text("bc")
    assert sources_hash(tree) != before


def test_versions_and_measured_variables_are_named() -> None:
    plain = fingerprint({})
    assert {"python", "oomscope", "sources", *PACKAGES} == set(plain)
    assert plain["torch"] != "none"
    with_conf = fingerprint({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "EDITOR": "vi"})
    assert with_conf == plain | {"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def test_versions_of_packages_are_read_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    monkeypatch.setattr(importlib.metadata, "version", None)
    assert fingerprint() == before
