"""A small card of two sources, built as the real one is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from oomscope.virtual import build
from tests.made_once import made_once
from tests.unit.virtual.libraries import CARD_SOURCES


def write_sources(folder: Path) -> Path:
    folder.mkdir()
    for name, text in CARD_SOURCES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small card's sources; nothing is generated beside them."""
    monkeypatch.setattr(build, "write_stubs", lambda folder: [])
    return write_sources(tmp_path / "csrc")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its libraries, which nobody may change."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "write_stubs", lambda folder: [])
            build.build(folder / "lib", sources=write_sources(folder / "csrc"))

    return made_once(tmp_path_factory, "small-card", make) / "lib"


@pytest.fixture
def small_card(compiled: Path, tmp_path: Path) -> Path:
    """The folder of its libraries, as they were built from ``sources``."""
    return shutil.copytree(compiled, tmp_path / "lib")
