"""Writes a file so that its name always refers to a whole one: the old content, or all of the new.

The content goes to a temporary name beside it, is flushed to the disk, and takes the name at the end. A writer that is
killed leaves at most a hidden ``.part`` file. A file that several processes change is locked from reading to writing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Literal

_USER_FOLDERS: Final = {"cache": Path(".cache"), "state": Path(".local", "state")}


def write_whole(path: Path, content: bytes, *, force: bool) -> None:
    """Write ``content`` to ``path``, with the permissions that the umask leaves to a new file.

    Args:
        path: the file; its folder exists.
        content: all of it.
        force: replace a file that is there.

    Raises:
        FileExistsError: there is a file, and ``force`` is not set.
        OSError: the place cannot be written to, or the name belongs to no regular file (a device, a directory).
    """
    with open_whole(path, force=force) as file:
        file.write(content)


def user_folder(kind: Literal["cache", "state"], environment: Mapping[str, str] = os.environ) -> Path:
    """Return oomscope's folder in ``$XDG_CACHE_HOME`` (``~/.cache``) or ``$XDG_STATE_HOME`` (``~/.local/state``).

    A variable that names no absolute path is ignored, as the XDG Base Directory Specification demands.
    """
    named = Path(environment.get(f"XDG_{kind.upper()}_HOME", ""))
    return (named if named.is_absolute() else Path.home() / _USER_FOLDERS[kind]) / "oomscope"


def real_path(path: Path) -> Path:
    """Return ``path`` without links; of a circle of links up to where it closes, where ``Path.resolve`` fails."""
    return Path(os.path.realpath(path))


def try_place(path: Path) -> None:
    """Try whether :func:`write_whole` may put a file at ``path``, and leave nothing behind.

    Raises:
        OSError: it may not: the name belongs to no regular file, or nothing can be made beside it.
    """
    _refuse_irregular(path)
    trial = path.parent / f".{os.urandom(8).hex()}.part"
    os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    trial.unlink()


@contextlib.contextmanager
def open_whole(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """Yield a file whose content takes the name ``path`` when the block ends, and is gone when the block fails.

    For what is too large to hold in memory twice; arguments and errors are those of :func:`write_whole`.
    """
    _refuse_irregular(path)
    unfinished = path.parent / f".{os.urandom(8).hex()}.part"
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        take_name(unfinished, path, force=force)
    finally:
        with contextlib.suppress(OSError):  # it has its name, or what went wrong is already on its way up
            unfinished.unlink()
    sync_directory(path.parent)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` while the block runs; wait for the current holder.

    The folder is locked, because it stays the same when the file is replaced. The lock leaves no file behind and ends
    with the process. On a file system without locks nobody waits.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(path.absolute().parent, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def tail_of(descriptor: int, start: int = 0, *, most_bytes: int = 16 * 1024) -> str:
    """Return the end of an open log, of its content after byte ``start``; what is cut begins with a line."""
    size = os.fstat(descriptor).st_size
    begin = max(start, size - most_bytes)
    text = os.pread(descriptor, max(0, size - begin), begin).decode(errors="replace")
    return (begin > start and text.partition("\n")[2]) or text


def _refuse_irregular(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def take_name(unfinished: Path, path: Path, *, force: bool) -> None:
    """Give the file ``unfinished`` the name ``path``: in place of its own, or beside it where none may be replaced.

    Unlike a rename, a link never replaces a file.

    Raises:
        FileExistsError: there is a file, and ``force`` is not set.
        OSError: the place cannot be written to.
    """
    if force:
        unfinished.replace(path)
        return
    try:
        path.hardlink_to(unfinished)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: the best that is left is to look first
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        unfinished.replace(path)


def sync_directory(directory: Path) -> None:
    """Make the new name durable, where the file system can; the file is in place already."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
