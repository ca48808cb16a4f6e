"""The directory in which the commands of the pages are run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.place import make
from tests.forked import probes
from tests.made_once import made_once


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory as every page finds it."""
    return made_once(tmp_path_factory, "docs", lambda folder: make(folder / "place")) / "place"


@pytest.fixture
def place(prepared: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it as the working directory, with no search and no night on record."""
    copy = tmp_path_factory.mktemp("page") / "place"
    shutil.copytree(prepared, copy, symlinks=True)
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]), ignore_errors=True)
    monkeypatch.setenv("HOME", str(prepared.parent))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(copy)
    with probes():
        yield copy
    shutil.rmtree(copy)
