"""Notes what a virtual card could not answer this process: reads of what it does not hold, with their lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

import oomscope
from oomscope import virtual
from oomscope.probe.machine.environment import INDUCTOR
from oomscope.probe.measurement import Unanswered
from oomscope.snapshot.trace import Frame

_MOST_LINES = 20
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(oomscope.__file__).parent / "probe"), "<")


class CardWatch:
    """Watches the card of this process; a real one answers everything."""

    def __init__(self) -> None:
        self._lines: dict[Frame, None] = {}
        self._seen = Unanswered()

    @property
    def seen(self) -> Unanswered:
        """What it could not answer since the process began to use it, as it stood when the watch ended."""
        return self._seen

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        if not virtual.is_loaded():
            yield
            return
        virtual.on_unknown_read(self._note)
        try:
            yield
        finally:
            virtual.on_unknown_read(None)
            state = virtual.state()
            self._seen = Unanswered(
                reads=state.unknown_reads,
                read_bytes=state.unknown_read_bytes,
                lines=tuple(self._lines),
                unsupported=state.unsupported,
                unknown_workspaces=state.unknown_workspaces,
            )

    def _note(self, size: int) -> None:
        if len(self._lines) < _MOST_LINES:
            line = _line_of(sys._getframe(1))
            if line is not None:
                self._lines[line] = None


def _line_of(frame: FrameType | None) -> Frame | None:
    """Return the innermost line outside torch, and outside code that inductor wrote; else the innermost line.

    None on a thread that runs no Python.
    """
    inductor = os.environ.get(INDUCTOR) or "<"
    innermost = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*_LIBRARIES, inductor)):
            break
        frame = frame.f_back
    chosen = frame or innermost
    return chosen and Frame(chosen.f_code.co_filename, chosen.f_lineno or 0, chosen.f_code.co_name)
