"""Read a snapshot file from anybody, in a process of its own whose memory and time are bounded.

Nothing in a file can run, and nothing in it can harm the caller: a pickle that calls, a decompression bomb, or bytes
that crash the interpreter cost one line. The reasons for a process: ``docs/design/snapshot.md``.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Final, cast

from oomscope.errors import OomscopeError, SnapshotError
from oomscope.snapshot.read.build_snapshot import snapshot_from
from oomscope.snapshot.read.limits import ALLOW_MORE, Limits
from oomscope.snapshot.read.reader import AGAIN
from oomscope.snapshot.read.tables import Tables
from oomscope.snapshot.trace import Snapshot
from oomscope.units import format_size

_PROGRAM: Final = (
    "import sys; sys.path += sys.argv[2:]; from oomscope.snapshot.read.child import main; main(sys.argv[1])"
)


def load_snapshot(path: Path | str, *, limits: Limits | None = None) -> Snapshot:
    """Return the snapshot in ``path``: a pickle of any torch since 2.0, or the same as JSON; plain, gzip or zstd.

    Raises:
        SnapshotError: the file is missing, over the limits, damaged, tries to run something, or is not a snapshot.
    """
    source, limits = Path(path), limits or Limits()
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise SnapshotError("is not a file", where=str(source), remedy="name a snapshot file")
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.file:
                raise SnapshotError(
                    f"{format_size(size)} is more than the {format_size(limits.file)} allowed",
                    where=str(source),
                    remedy=ALLOW_MORE,
                )
            return _read(file, str(source), limits)
    except OSError as error:
        reason = f"cannot read: {error.strerror or error}"
        raise SnapshotError(reason, where=str(source), remedy="name a snapshot file") from error


def _read(file: BinaryIO, where: str, limits: Limits) -> Snapshot:
    """Return the snapshot in an open file, which the reading process inherits as its standard input."""
    paths = [str(Path(__file__).parents[3]), *filter(None, sys.path)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, json.dumps(asdict(limits)), *paths]
    with subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        try:
            tables = Tables.read(cast("BinaryIO", reader.stdout))
        except EOFError:
            complaint = cast("BinaryIO", reader.stderr).read().decode(errors="replace")
            raise _end(reader.wait(), where, complaint) from None
        except BaseException:  # such as an interrupt: do not wait for the reader
            reader.kill()
            raise
        if message := tables.values.get("error"):
            raise SnapshotError(message, where=where, remedy=tables.values["remedy"])
        return snapshot_from(tables)  # meanwhile the reader frees its memory


def _end(code: int, where: str, complaint: str) -> OomscopeError:
    """Return the error for a reader that ended without an answer."""
    if code >= 0:
        lines = complaint.splitlines() or [f"exit status {code}"]
        return OomscopeError(f"the reader of snapshots failed ({lines[-1]})", where=where, remedy="please report it")
    if -code == signal.SIGXCPU:
        return SnapshotError("reading it takes longer than allowed for its length", where=where, remedy=AGAIN)
    name = signal.Signals(-code).name
    return SnapshotError(f"it crashed the reader ({name})", where=where, remedy=AGAIN)
