"""What every test may ask for: the ground truth that lies outside the project, and a clean environment."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import tests.card  # noqa: F401 - before any test imports torch
from tests.made_once import made_once, shared_folder

ROOT = Path(__file__).resolve().parents[1]
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG")
TERMINAL = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
CI_SYSTEM = ("GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
UNSET = (*ALLOCATOR_SETTINGS, *TERMINAL, *CI_SYSTEM)


hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)  # a busy machine is no failure
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure() -> None:
    """Heed the signals that tests send, also where the whole run was started in the background with them ignored.

    A shell without job control starts ``make test &`` so, and every program below inherits it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_collection() -> None:
    """Have no garbage looked for meanwhile: half a million objects come, all of which stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collector's sight from here on."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def ground_truth() -> Path:
    """The folder of recorded traces and published numbers; the test is skipped where it is absent."""
    folder = Path(os.environ.get("OOMSCOPE_GROUND_TRUTH", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no ground truth at {folder} (set OOMSCOPE_GROUND_TRUTH)")
    return folder


@pytest.fixture(scope="session")
def virtual_captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of some captures of the virtual card; not to be changed."""
    from tests.gpu.virtual_captures import SOME, capture

    words = ["--at-once=3", *(f"--name={name}" for name in SOME)]
    return made_once(tmp_path_factory, "captures", lambda folder: capture(folder, words))


@pytest.fixture(autouse=True, scope="session")
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's caches, allocator settings, terminal and CI system out of the tests and all that they share.

    Workers share a cache, so that one of them compiles the allocator's engine for all.
    """
    home = tmp_path_factory.getbasetemp() / "xdg"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_folder(tmp_path_factory) / "cache"))
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(name, str(home / name.lower()))
        for name in UNSET:
            patch.delenv(name, raising=False)
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # some machines have no ``python``
        patch.setattr(os, "fsync", lambda _descriptor: None)  # no test takes the power away, and a disk is slow
        yield
