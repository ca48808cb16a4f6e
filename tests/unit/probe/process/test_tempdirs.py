"""A temporary directory is gone when its owner is, however the owner ends."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from oomscope.probe.process.tempdirs import remove_tree, sweep, tempdir

OWNER = """
import sys, time
from pathlib import Path
from oomscope.probe.process.tempdirs import tempdir
with tempdir(Path(sys.argv[1]), "search") as path:
    (path / "deep").mkdir()
    (path / "deep" / "file").touch()
    print(path, flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal just before a sleep is handled after it
"""


def start_owner(directory: Path) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(directory)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


def end(owner: subprocess.Popen[str], number: int) -> int:
    owner.send_signal(number)
    status = owner.wait(timeout=30)
    assert owner.stdout is not None
    owner.stdout.close()
    return status


def test_a_tempdir_is_gone_after_the_block(tmp_path: Path) -> None:
    with tempdir(tmp_path / "rooms", "search") as path:
        assert path.is_dir()
        (path / "file").touch()
    assert list((tmp_path / "rooms").iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_tempdir_is_gone_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), tempdir(tmp_path, "search"):
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_tempdir_is_gone_after_a_signal(tmp_path: Path, number: int) -> None:
    owner, path = start_owner(tmp_path)
    assert path.is_dir()
    assert end(owner, number) != 0
    assert list(tmp_path.iterdir()) == []


def test_the_tempdir_of_a_killed_owner_is_swept_by_the_next(tmp_path: Path) -> None:
    owner, path = start_owner(tmp_path)
    sweep(tmp_path, "search")
    assert path.exists(), "the owner lives"
    assert end(owner, signal.SIGKILL) == -signal.SIGKILL
    assert (path / "deep" / "file").exists()
    with tempdir(tmp_path, "search") as mine:
        assert not path.exists()
        assert mine.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_read_only_trees_go_and_links_are_not_followed(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    (outside / "precious").touch()
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "file").touch()
    (tree / "link").symlink_to(outside)
    (tree / "inner").chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "precious").exists()
    remove_tree(tree)


def test_only_tempdirs_of_the_same_kind_are_swept(tmp_path: Path) -> None:
    for name in ("apt.lock", "search.lock", "other-1-ab.lock"):
        (tmp_path / name).touch()
    (tmp_path / "apt").mkdir()
    with tempdir(tmp_path, "search") as mine:
        assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    assert len(list(tmp_path.iterdir())) == 4
