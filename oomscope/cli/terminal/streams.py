"""Standard output and error while a command runs: what cannot be written ends it in one way, wherever that happens.

A reader that went away (``oomscope probe … | head -1``) and a full disk both surface as an ``OSError`` in whatever code
was printing, which cannot be told from any other there. So the streams give these failures names of their own, and
throw away what is still printed on the way out.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

from oomscope.errors import ExitCode, OomscopeError

_ELSEWHERE = "send it where there is room, such as a file on another disk"


class ReaderGoneError(Exception):
    """Whoever read standard output or error has gone: no mistake of anybody's, and nobody is left to be told."""

    exit_code: ExitCode = ExitCode.BROKEN_PIPE


class OutputError(OomscopeError):
    """Standard output or error cannot be written to."""

    exit_code: ExitCode = ExitCode.OUTPUT_LOST


class _Stream:
    """A standard stream that names its failure; after that it swallows everything."""

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
        """Hand on what was written."""
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
        """Point the stream at nothing; Python would try the rest of its buffer once more at its end."""
        with contextlib.suppress(OSError):  # a stream without a file, as under a test, buffers nothing
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)


@contextlib.contextmanager
def named_failures() -> Iterator[None]:
    """Let ``sys.stdout`` and ``sys.stderr`` name their failures inside the block, at whose end both are flushed.

    A character that the terminal's encoding lacks is written in plain signs, else as its escape. Where standard error
    was closed (``2>&-``), what is said there was not wanted.

    Raises:
        ReaderGoneError: somebody stopped to read one of them.
        OutputError: one of them cannot be written to, or standard output was closed (``>&-``).
    """
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    if not _is_open(sys.stdout):
        raise OutputError("is closed", where="standard output", remedy="send it to a file or to /dev/null")
    out = _Stream(_opened_anew(sys.stdout), "standard output")
    err = _Stream(_opened_anew(sys.stderr), "standard error")
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


def last_word(text: str) -> None:
    """Say ``text`` on standard error, where that is still possible."""
    with contextlib.suppress(ReaderGoneError, OutputError, OSError):
        if _is_open(sys.stderr):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _opened_anew(stream: TextIO) -> TextIO:
    """Return a stream to the same file that writes what it cannot encode in others, and writes everything or fails.

    Under ``PYTHONUNBUFFERED`` Python's own has no buffer, and takes for written what a pipe or disk took only in part.
    """
    if not _is_open(stream):
        return open(2, "w", encoding="utf-8", closefd=False)
    try:
        descriptor = stream.fileno()
    except OSError:  # no file behind it, as under a test
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=IN_PLAIN_SIGNS, closefd=False)


def _is_open(stream: TextIO | None) -> bool:
    """Python sets a stream to None whose descriptor was closed when it started."""
    return stream is not None


def _occupy_standard_descriptors() -> None:
    """Open what was closed of the descriptors 0 to 2 on nothing, so that no file or pipe of ours takes its place.

    A probe's process gets them anew, and would lose a pipe that had one of these numbers.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


IN_PLAIN_SIGNS: Final = "oomscope.plain-signs"
"""The name of an error handler, as ``open`` takes it."""
_SIGNS: Final = {
    "·": "-",
    "…": "...",
    "→": "->",
    "≥": ">=",
    "²": "^2",
    "●": "*",
    "█": "#",
    "░": ".",
    "━": "-",
    "─": "-",
    "▸": ">",
    "✓": "+",
    "✗": "x",
}


def _in_plain_signs(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or _escaped(sign) for sign in lacking), error.end


def _escaped(sign: str) -> str:
    return sign.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(IN_PLAIN_SIGNS, _in_plain_signs)
