"""Writes snapshots of this process's history, one at a time, whole or not at all, and reports what that cost.

A snapshot says where it comes from: the rank, the cards, and why it is written now.
"""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from oomscope.capture import history, names
from oomscope.capture.messages import Messages
from oomscope.capture.settings import Settings
from oomscope.files import open_whole
from oomscope.snapshot.provenance import KEY, Card, Provenance, Reason, Refused
from oomscope.snapshot.write import PICKLE_PROTOCOL
from oomscope.units import format_size

GZIP_LEVEL: Final = 1
ZSTD_LEVEL: Final = 3


@dataclass(frozen=True, kw_only=True)
class Written:
    """A snapshot on disk, and what writing it cost."""

    path: Path
    seconds: float
    """Seconds that the program waited: from the first question to the allocator to the file's name on the disk."""
    file_bytes: int
    events: int
    """Events of the device with most events."""
    max_entries: int | None
    """Size of the ring; None where somebody else set it."""

    def __str__(self) -> str:
        """Return what was written, for a message."""
        share = ""
        if self.max_entries is not None:
            share = f" ({100 * self.events / self.max_entries:.0f} % of the ring)"
            if self.events >= self.max_entries:
                share = " (the ring is full, older ones are lost: raise max_entries to keep more)"
        size = format_size(self.file_bytes)
        return f"wrote {self.path}: {self.events:,} events{share}, {size} in {self.seconds:.1f} s"


def write(document: dict[str, Any], path: Path, *, since: float, max_entries: int | None, force: bool) -> Written:
    """Write ``document`` to ``path``, or to the next free name where that is taken and ``force`` is not set.

    ``.gz`` or ``.zst`` at the end of ``path`` compresses; missing folders are made. The program has waited ``since``,
    by ``time.perf_counter()``.

    Raises:
        OSError: the place cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        target = path if force else next(names.free_names(path))
        try:
            with open_whole(target, force=force) as file, _packed(file, target) as out:
                pickle.dump(document, out, protocol=PICKLE_PROTOCOL)
            break
        except FileExistsError:  # another process took the name in the meantime
            continue
    return Written(
        path=target,
        seconds=time.perf_counter() - since,
        file_bytes=target.stat().st_size,
        events=max(map(len, document.get("device_traces", [])), default=0),
        max_entries=max_entries,
    )


@contextmanager
def _packed(file: BinaryIO, path: Path) -> Iterator[Any]:
    if path.suffix == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=GZIP_LEVEL, filename="", mtime=0) as packed:
            yield packed
    elif path.suffix == ".zst":
        import zstandard

        with zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file


class SnapshotWriter:
    """Writes snapshots, and calls ``afterwards`` when one is done.

    Where the program records its allocator itself, it is ``borrowed``: nobody knows the ring's size.
    """

    def __init__(
        self, settings: Settings, messages: Messages, *, borrowed: bool, afterwards: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._messages = messages
        self._borrowed = borrowed
        self._afterwards = afterwards
        self._started = datetime.now(UTC)
        self._rank: int | None = None
        self._writing = threading.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether no snapshot is being written at this moment."""
        return not self._writing.locked()

    def look_up_rank(self) -> None:
        """Keep the last rank that was known: the process group may be gone when the program ends."""
        rank = names.rank_of_process(os.environ)
        self._rank = self._rank if rank is None else rank

    def keep(self, reason: Reason, *, tag: str = "", step: int, refusal: Refused | None = None) -> Path | None:
        """Write a snapshot; None where that failed, or one is being written already."""
        if not self._writing.acquire(blocking=False):
            return None
        try:
            written = self._messages.attempt("no snapshot was written", lambda: self._keep(reason, tag, step, refusal))
        finally:
            self._writing.release()
            self._afterwards()
        if written is None:
            return None
        self._messages.say(str(written))
        return written.path

    def _keep(self, reason: Reason, tag: str, step: int, refusal: Refused | None) -> Written:
        since = time.perf_counter()
        self.look_up_rank()
        document = history.document()
        told = self._messages.attempt(
            "the snapshot's origin is not recorded",
            lambda: self._origin(document, reason, step, refusal),
        )
        if told is not None:
            document[KEY] = told.to_json()
        rank = names.stand_in_rank() if self._rank is None else str(self._rank)
        path = names.fill(self._settings.path, rank=rank, time=self._started)
        return write(
            document,
            names.tagged(path, tag) if tag else path,
            since=since,
            max_entries=None if self._borrowed else self._settings.max_entries,
            force=self._settings.force,
        )

    def _origin(self, document: dict[str, Any], reason: Reason, step: int, refusal: Refused | None) -> Provenance:
        world_size = names.world_size_of_process(os.environ)
        return Provenance(
            reason=reason,
            rank=-1 if self._rank is None else self._rank,
            world_size=-1 if world_size is None else world_size,
            iteration=step,
            host=socket.gethostname(),
            pid=os.getpid(),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            torch_version=str(torch.__version__),
            max_entries=-1 if self._borrowed else self._settings.max_entries,
            stacks="" if self._borrowed else self._settings.stacks,
            cards=tuple(_card(index) for index in sorted({segment["device"] for segment in document["segments"]})),
            refused=refusal,
        )


def _card(index: int) -> Card:
    """Return the memory of a device that the process uses; a query of another would make a context there."""
    free, total = torch.cuda.mem_get_info(index)
    return Card(
        index=index,
        name=torch.cuda.get_device_name(index),
        total_bytes=int(total),
        free_bytes=int(free),
        memory_fraction=history.memory_fraction(index),
    )
