"""Standard output and error while a command runs: a failure to write ends it in one way, wherever it happens.

A reader that went away (``oomscope probe … | head -1``) and a full disk both raise an ``OSError`` in whatever code was
printing, where it looks like any other. So the streams raise errors of their own, and discard what is printed after.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from oomscope.errors import ExitCode, OomscopeError

_ELSEWHERE = "send it where there is room, such as a file on another disk"


class ReaderGoneError(Exception):
    """The reader of standard output or error has gone."""

    exit_code: ExitCode = ExitCode.BROKEN_PIPE


class OutputError(OomscopeError):
    """Standard output or error cannot be written to."""

    exit_code: ExitCode = ExitCode.OUTPUT_LOST


class _Stream:
    """A standard stream that raises errors of its own; after the first it discards everything."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self.failure: ReaderGoneError | OutputError | None = None

    def write(self, text: str) -> int:
        """Write ``text``."""
        if text == "":  # libraries write nothing to find out what a stream takes, and swallow whatever that raises
            return 0
        with self._failure_named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._failure_named():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _failure_named(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            failure: ReaderGoneError | OutputError = ReaderGoneError()
        except OSError as error:
            failure = OutputError(f"cannot write: {error.strerror}", where=self._name, remedy=_ELSEWHERE)
        else:
            return
        self.failure = self.failure or failure
        self._swallow()
        raise failure

    def _swallow(self) -> None:
        """Point the stream at ``/dev/null``; Python would flush the rest of its buffer when it ends."""
        with contextlib.suppress(OSError):  # a stream without a file, as under a test, buffers nothing
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)


@contextlib.contextmanager
def named_failures() -> Iterator[None]:
    """Let ``sys.stdout`` and ``sys.stderr`` raise errors of their own inside the block, and flush both at its end.

    A character that the terminal's encoding lacks is written as its escape. A closed standard error (``2>&-``) discards
    what is written there.

    Raises:
        ReaderGoneError: the reader of one of them has gone.
        OutputError: one of them cannot be written to, or standard output was closed (``>&-``).
    """
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    if sys.stdout is None:  # Python does this where the descriptor was closed at start
        raise OutputError("is closed", where="standard output", remedy="send it to a file or to /dev/null")
    out = _Stream(_reopened(sys.stdout), "standard output")
    err = _Stream(_reopened(sys.stderr), "standard error")
    sys.stdout, sys.stderr = cast("TextIO", out), cast("TextIO", err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in (out, err):
            with contextlib.suppress(ReaderGoneError, OutputError):  # it is kept, and raised below
                stream.flush()
    if failure := out.failure or err.failure:  # also where the code that was printing has swallowed it
        raise failure


def write_last_line(text: str) -> None:
    """Write ``text`` to standard error if that is still possible."""
    with contextlib.suppress(ReaderGoneError, OutputError, OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _reopened(stream: TextIO | None) -> TextIO:
    """Return a stream to the same file that escapes what it cannot encode, and writes everything or fails.

    Under ``PYTHONUNBUFFERED`` Python's own has no buffer, and loses what a pipe or disk took only in part.
    """
    if stream is None:
        return open(2, "w", encoding="utf-8", closefd=False)
    try:
        descriptor = stream.fileno()
    except OSError:  # no file behind it, as under a test
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors="backslashreplace", closefd=False)


def _occupy_standard_descriptors() -> None:
    """Open closed descriptors of 0 to 2 on ``/dev/null``: a file of ours would become a child's standard stream."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
