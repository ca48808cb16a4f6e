"""A sign of life that a search gives its jobs through the file system, so that none outlives it for long.

A job on another machine sees neither the search's process nor its locks. It sees a file change as long as the search
lives, and ends once that has stopped, however the search ended.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BEAT_S = 10.0
LEASE_S = 180.0
"""Longer than a network file system may show an old time of change (NFS: 60 s for files, see nfs(5), ``acregmax``)."""


@contextmanager
def kept(alive: Path, beat_s: float = BEAT_S) -> Iterator[None]:
    """Change the time of ``alive``, which is made, every ``beat_s`` seconds within the block."""
    alive.touch()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(beat_s):
            with contextlib.suppress(OSError):
                os.utime(alive)

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def watched(alive: Path, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> Iterator[threading.Event]:
    """Yield an event that is set once ``alive`` is gone, or its time has not changed for ``lease_s`` seconds."""
    over, ended = threading.Event(), threading.Event()

    def watch() -> None:
        seen, patience = _changed(alive), lease_s
        while seen is not None and patience > 0 and not over.wait(beat_s):
            now = _changed(alive)
            seen, patience = now, lease_s if now != seen else patience - beat_s
        if not over.is_set():
            ended.set()

    thread = threading.Thread(target=watch, name="lease", daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        over.set()
        thread.join()


def _changed(alive: Path) -> int | None:
    """Return when ``alive`` was changed; None where it is gone, 0 where the file system does not say."""
    try:
        return alive.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError:
        return 0
