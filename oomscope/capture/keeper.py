"""Keeps snapshots of this process's history: under which name, with what said of their origin, one at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from oomscope.capture import history, names
from oomscope.capture.history import Refusal
from oomscope.capture.messages import Messages
from oomscope.capture.origin import origin
from oomscope.capture.settings import Ring, Settings
from oomscope.capture.writer import Written, write
from oomscope.snapshot.provenance import KEY, Reason


class Keeper:
    """Writes snapshots.

    Args:
        settings: the name, and whether files may be replaced.
        messages: where it is told what was written.
        borrowed: the program records its allocator itself, so nobody knows the ring's size.
        afterwards: called when a snapshot is done.
    """

    def __init__(
        self, settings: Settings, messages: Messages, *, borrowed: bool, afterwards: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._messages = messages
        self._ring = None if borrowed else Ring(settings.max_entries, settings.stacks)
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

    def keep(self, reason: Reason, *, tag: str = "", step: int, refusal: Refusal | None = None) -> Path | None:
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

    def _keep(self, reason: Reason, tag: str, step: int, refusal: Refusal | None) -> Written:
        since = time.perf_counter()
        self.look_up_rank()
        document = history.document()
        told = self._messages.attempt(
            "the snapshot does not say where it comes from",
            lambda: origin(document, reason=reason, rank=self._rank, step=step, refusal=refusal, ring=self._ring),
        )
        if told is not None:
            document[KEY] = told.to_json()
        rank = names.stand_in_rank() if self._rank is None else str(self._rank)
        path = names.fill(self._settings.path, rank=rank, time=self._started)
        return write(
            document,
            names.tagged(path, tag) if tag else path,
            since=since,
            ring=self._ring,
            force=self._settings.force,
        )
