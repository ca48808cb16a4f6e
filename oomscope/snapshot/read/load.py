"""Read a snapshot file from anybody, in a process of its own whose memory and time are bounded.

Nothing in a file can run, and nothing in it can harm the caller: a pickle that calls, a decompression bomb, or bytes
that crash the interpreter cost one line. The reasons for a process: ``docs/design/snapshot.md``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Final, cast

from oomscope.errors import OomscopeError, SnapshotError
from oomscope.snapshot.read.limits import MEMORY_TO_START, SECONDS_TO_START, Limits
from oomscope.snapshot.read.schema import snapshot_from
from oomscope.snapshot.read.tables import Tables
from oomscope.snapshot.trace import Snapshot
from oomscope.units import format_size

__all__ = ["Limits", "load_snapshot", "parse_snapshot"]

_PROGRAM: Final = (
    "import sys; sys.path += sys.argv[2:]; from oomscope.snapshot.read.child import main; main(sys.argv[1])"
)
_AGAIN: Final = "record or copy the snapshot again"
SECONDS_FOR_A_WRITER: Final = 60
"""How long a pipe may keep silent before its first byte."""


def load_snapshot(path: Path | str, *, limits: Limits | None = None) -> Snapshot:
    """Return the snapshot in ``path``: a pickle of any torch since 2.0, or the same as JSON; plain, gzip or zstd.

    Raises:
        SnapshotError: the file is missing, over the limits, damaged, tries to run something, or is no snapshot; or a
            pipe that nobody writes to.
    """
    source, limits = Path(path), limits or Limits()
    try:
        with open(source, "rb", opener=_without_waiting) as file:
            mode = os.fstat(file.fileno())
            if stat.S_ISFIFO(mode.st_mode):
                _await_writer(file, str(source), min(limits.seconds, SECONDS_FOR_A_WRITER))
            elif not stat.S_ISREG(mode.st_mode):
                raise SnapshotError("is no file", where=str(source), remedy="name a snapshot file")
            if mode.st_size > limits.file:
                raise SnapshotError(
                    f"{format_size(mode.st_size)} is more than the {format_size(limits.file)} allowed",
                    where=str(source),
                    remedy="record fewer events (max_entries), or allow more",
                )
            return _read(file, str(source), limits)
    except OSError as error:
        reason = f"cannot read: {error.strerror or error}"
        raise SnapshotError(reason, where=str(source), remedy="name a snapshot file") from error


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; of a pipe without a writer, do not wait for one."""
    return os.open(path, flags | os.O_NONBLOCK)


def _await_writer(pipe: BinaryIO, where: str, seconds: int) -> None:
    """Wait until there is something to read from a pipe, or its writer has left."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(1000 * seconds):
        raise SnapshotError(f"nobody wrote to the pipe for {seconds} s", where=where, remedy="name a snapshot file")
    os.set_blocking(pipe.fileno(), True)


def parse_snapshot(content: bytes, *, where: str, limits: Limits | None = None) -> Snapshot:
    """Return the snapshot that bytes hold; ``where`` names them in messages.

    Raises:
        SnapshotError: as :func:`load_snapshot`.
    """
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        return _read(file, where, limits or Limits())


def _read(file: BinaryIO, where: str, limits: Limits) -> Snapshot:
    """Return the snapshot in an open file, which the reading process inherits as its standard input."""
    settings = {**asdict(limits), "memory_to_start": MEMORY_TO_START, "seconds_to_start": SECONDS_TO_START}
    paths = [str(Path(__file__).parents[3]), *filter(None, sys.path)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(settings), *paths]
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        try:
            tables = Tables.read(cast("BinaryIO", reader.stdout))
        except EOFError:
            complaint = cast("BinaryIO", reader.stderr).read().decode(errors="replace")
            raise _end(reader.wait(), where, complaint) from None
        except BaseException:  # an interrupt, say: do not wait for it
            reader.kill()
            raise
        if message := tables.values.get("error"):
            raise SnapshotError(message, where=where, remedy=tables.values["remedy"])
        return snapshot_from(tables)  # meanwhile the reader gives back its memory


def _end(code: int, where: str, complaint: str) -> OomscopeError:
    """Return the error for a reader that ended without an answer."""
    if code >= 0:
        lines = complaint.splitlines() or [f"exit status {code}"]
        return OomscopeError(f"the reader of snapshots failed ({lines[-1]})", where=where, remedy="please report it")
    if -code in (signal.SIGXCPU, signal.SIGALRM):
        return SnapshotError("reading it takes longer than allowed for its length", where=where, remedy=_AGAIN)
    name = signal.Signals(-code).name
    return SnapshotError(f"its content ended the reader ({name})", where=where, remedy=_AGAIN)
