"""Disposable directories that are gone when their owner is: on return, on an error, on a signal, and after a crash.

Beside each directory lies a lock file. The owner holds the lock as long as it lives; the kernel releases it when the
process ends, however that happens, so whoever comes next can tell a dead owner's directory and remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oomscope.probe.machine.processes import signals_as_exits

_LOCK_SUFFIX = ".lock"


@contextmanager
def tempdir(directory: Path, prefix: str) -> Iterator[Path]:
    """Make an empty directory in ``directory``, for this user alone, yield it, and remove it with all that it holds.

    Directories of dead owners in ``directory`` with the same ``prefix`` are removed first. Within the block SIGTERM and
    SIGHUP end the program by ``SystemExit`` (in the main thread), so that they pass through here as Ctrl-C does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory, prefix)
    path = directory / f"{prefix}-{os.getpid()}-{secrets.token_hex(4)}"
    lock = path.with_name(path.name + _LOCK_SUFFIX)
    with _locked(lock), signals_as_exits():
        try:
            path.mkdir(mode=stat.S_IRWXU)
            yield path
        finally:
            remove_tree(path)
            lock.unlink(missing_ok=True)


def sweep(directory: Path, prefix: str) -> None:
    """Remove this user's directories of ``prefix`` in ``directory`` whose owners are dead."""
    for lock in sorted(directory.glob(f"{prefix}-*{_LOCK_SUFFIX}")):
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_same(file.fileno(), lock) or os.fstat(file.fileno()).st_uid != os.getuid():
                continue  # another sweep came first: the name may belong to a living owner by now
            path = lock.with_name(lock.name.removesuffix(_LOCK_SUFFIX))
            remove_tree(path)
            if not path.exists():  # else a process of the dead owner still writes there: the next sweep removes it
                lock.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove ``path`` and everything in it, also what was made read-only; links are not followed."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError:
        for directory, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                Path(directory).chmod(stat.S_IRWXU)
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold ``lock``, a file that does not exist yet."""
    while True:
        with lock.open("w+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_same(file.fileno(), lock):
                yield
                return
        # A sweep between open and flock mistook the new file for a dead owner's: make another.


def _is_same(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
