"""A small card of two sources, built as the real one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.virtual import build
from tests.unit.virtual.libraries import CARD_SOURCES


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small card's sources; nothing is generated beside them."""
    monkeypatch.setattr(build, "write_stubs", lambda folder: [])
    folder = tmp_path / "csrc"
    folder.mkdir()
    for name, text in CARD_SOURCES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def small_card(sources: Path, tmp_path: Path) -> Path:
    """The folder of its libraries."""
    out = tmp_path / "lib"
    build.build(out, sources=sources)
    return out
