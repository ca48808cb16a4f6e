"""The compiled engine on disk is unpickled only where nobody else can have written it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomscope.allocator import compiled
from oomscope.allocator.compiled import cache_directory, compiled_run, is_compiled

INSIDE = Path("engine_f7")


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a cache as a compilation leaves it under a umask that lets the group write."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    umask = os.umask(0o002)
    try:
        assert is_used()
        folder = cache_directory()
        (folder / INSIDE).mkdir()
        for name in ("run.nbi", "run.1.nbc"):
            (folder / INSIDE / name).write_bytes(b"")
    finally:
        os.umask(umask)
    return folder


def is_used() -> bool:
    """Whether a process that begins now would read the cache."""
    return compiled_run.__wrapped__().stats.cache_path is not None


def test_the_users_own_cache_is_used(on_disk: Path) -> None:
    assert is_compiled()
    assert is_used()


@pytest.mark.parametrize("name", [".", ".."])
def test_a_cache_that_others_may_write_to_is_not(on_disk: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    folder = on_disk if name == "." else on_disk.parent
    folder.chmod(0o775)
    assert not is_compiled()
    assert not is_used()
    assert f"others may write to {folder}; remove that folder" in caplog.text


def test_a_cache_behind_a_link_is_not_used(on_disk: Path, tmp_path: Path) -> None:
    on_disk.rename(tmp_path / "elsewhere")
    on_disk.symlink_to(tmp_path / "elsewhere")
    assert not is_compiled()
    assert not is_used()


def test_a_cache_of_another_user_is_not_used(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled.os, "getuid", lambda: on_disk.stat().st_uid + 1)
    assert not is_compiled()
    assert not is_used()
    assert "belongs to another user" in caplog.text
