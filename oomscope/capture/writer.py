"""Writes what the history holds into a file, whole or not at all, and says what that cost."""

from __future__ import annotations

import gzip
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from oomscope.capture import names
from oomscope.capture.settings import Ring
from oomscope.files import open_whole
from oomscope.snapshot.write import PICKLE_PROTOCOL
from oomscope.units import format_size

GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3


@dataclass(frozen=True, kw_only=True)
class Written:
    """A snapshot on disk, and its price."""

    path: Path
    seconds: float
    """From the first question to the allocator to the file's name on the disk; the program waited so long."""
    file_bytes: int
    events: int
    """Of the device that had most."""
    ring: Ring | None
    """None where somebody else set it."""

    def __str__(self) -> str:
        return (
            f"wrote {self.path}: {self.events:,} events{self._share()}, "
            f"{format_size(self.file_bytes)} in {self.seconds:.1f} s"
        )

    def _share(self) -> str:
        if self.ring is None:
            return ""
        if self.events >= self.ring.max_entries:
            return " (the ring is full, older ones are lost: raise max_entries to keep more)"
        return f" ({100 * self.events / self.ring.max_entries:.0f} % of the ring)"


def write(document: dict[str, Any], path: Path, *, since: float, ring: Ring | None, force: bool) -> Written:
    """Write ``document`` to ``path``, or to the next free name where that is taken and ``force`` is not set.

    Args:
        document: a snapshot in torch's schema.
        path: ``.gz`` or ``.zst`` at its end compresses; missing folders are made.
        since: ``time.perf_counter()`` when the program began to wait.
        ring: what the allocator keeps, where it is known.
        force: replace a file that is there.

    Raises:
        OSError: the place cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    target = _write(document, path, force=True) if force else _write_free(document, path)
    return Written(
        path=target,
        seconds=time.perf_counter() - since,
        file_bytes=target.stat().st_size,
        events=max(map(len, document.get("device_traces", [])), default=0),
        ring=ring,
    )


def _write_free(document: dict[str, Any], path: Path) -> Path:
    while True:
        target = next(names.free_names(path))
        try:
            return _write(document, target, force=False)
        except FileExistsError:  # another process took the name in the meantime
            continue


def _write(document: dict[str, Any], target: Path, *, force: bool) -> Path:
    with open_whole(target, force=force) as file, _packed(file, target) as out:
        pickle.dump(document, out, protocol=PICKLE_PROTOCOL)
    return target


@contextmanager
def _packed(file: BinaryIO, path: Path) -> Iterator[Any]:
    """Yield what compresses into ``file`` as the name asks."""
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=GZIP_LEVEL, filename="", mtime=0) as packed:
            yield packed
    elif path.suffix == ".zst":
        import zstandard

        with zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file
