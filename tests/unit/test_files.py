"""A name stands for the old file or the new one, whatever goes wrong, and for nobody else's."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from oomscope.files import held, open_whole, tail_of, user_folder, write_whole


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.json"


def fails(code: int):
    def call(*_arguments: object, **_named: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("force", [False, True])
def test_all_of_the_content_is_there_and_nothing_else(file: Path, force: bool) -> None:
    content = bytes(range(256)) * 1000
    write_whole(file, content, force=force)
    assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]
    assert file.stat().st_nlink == 1


def test_a_file_is_replaced_on_demand_only(file: Path) -> None:
    file.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_whole(file, b"new", force=False)
    assert file.read_bytes() == b"old"
    write_whole(file, b"new", force=True)
    assert file.read_bytes() == b"new"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_appears_meanwhile_is_not_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: file.write_bytes(b"theirs"))
    with pytest.raises(FileExistsError):
        write_whole(file, b"ours", force=False)
    assert file.read_bytes() == b"theirs"


def test_without_hard_links_a_file_is_neither_replaced_nor_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.link", fails(errno.EPERM))
    write_whole(file, b"first", force=False)
    with pytest.raises(FileExistsError):
        write_whole(file, b"second", force=False)
    assert file.read_bytes() == b"first"
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failure_leaves_the_old_file_and_no_other(file: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"old")
    monkeypatch.setattr(step, fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"new", force=True)
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_file_and_folder_are_flushed_in_this_order(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        "os.fsync", lambda number: flushed.append((stat.S_ISDIR(os.fstat(number).st_mode), file.exists()))
    )
    write_whole(file, b"new", force=False)
    assert flushed == [(False, False), (True, True)]


def test_a_file_system_that_cannot_flush_folders_is_no_failure(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_files(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            fails(errno.EINVAL)()

    monkeypatch.setattr("os.fsync", only_files)
    write_whole(file, b"new", force=False)
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_who_may_read(file: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(file, b"", force=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            write_whole(place, b"new", force=True)
    assert pipe.is_fifo()


def test_a_name_of_the_largest_length_will_do(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 255)
    write_whole(file, b"new", force=False)
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_written_piece_by_piece_appears_at_the_end(file: Path) -> None:
    with open_whole(file, force=False) as out:
        out.write(b"one ")
        assert not file.exists()
        out.write(b"two")
    assert file.read_bytes() == b"one two"


def test_a_writer_that_fails_midway_leaves_the_old_file_and_nothing_else(file: Path) -> None:
    file.write_bytes(b"old")
    with pytest.raises(TypeError), open_whole(file, force=True) as out:
        out.writelines([b"half", None])
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_who_holds_a_file_is_alone_with_it(file: Path) -> None:
    inside, most = [], []

    def add_one(_number: int) -> None:
        with held(file):
            inside.append(1)
            most.append(len(inside))
            before = int(file.read_bytes()) if file.exists() else 0
            write_whole(file, str(before + 1).encode(), force=True)
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(40)))
    assert (file.read_bytes(), max(most)) == (b"40", 1)
    assert list(file.parent.iterdir()) == [file]


def test_without_file_locks_no_process_waits(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(errno.ENOLCK))
    with held(file), held(file):
        pass
    with held(file.parent / "none" / "a.json"):
        pass


@pytest.mark.parametrize(
    ("start", "most", "end"), [(0, 20, "one\ntwo\nthree\n"), (4, 20, "two\nthree\n"), (0, 8, "three\n"), (0, 3, "ee\n")]
)
def test_the_end_of_a_log_begins_with_a_line(file: Path, start: int, most: int, end: str) -> None:
    file.write_text("one\ntwo\nthree\n")
    with file.open("rb") as log:
        assert tail_of(log.fileno(), start, most_bytes=most) == end


def test_the_users_folders_are_those_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    given = {"XDG_CACHE_HOME": "/scratch", "XDG_STATE_HOME": "relative"}
    assert user_folder("cache", given) == Path("/scratch/oomscope")
    assert user_folder("state", given) == Path("/home/ada/.local/state/oomscope")
    assert user_folder("cache", {}) == Path("/home/ada/.cache/oomscope")
