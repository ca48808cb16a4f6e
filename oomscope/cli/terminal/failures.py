"""What the operating system refused in a place that nobody guards becomes one line: the file, why, and what to do.

Most places say more than this. What is left is no defect of oomscope either: a disk that is full, a directory that is
read-only, a name that is too long.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from oomscope.cli.terminal.output import internal_error, remark
from oomscope.cli.terminal.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, InputError, MachineUnfitError, OomscopeError

_MACHINES = {
    errno.ENOSPC: "make room on its disk, or let TMPDIR and --state name directories on another",
    errno.EDQUOT: "make room within your quota, or let TMPDIR and --state name directories elsewhere",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "let TMPDIR, XDG_STATE_HOME and XDG_CACHE_HOME name directories that can be written to",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close programs that hold files open",
    errno.ENOMEM: "free memory on this machine",
    errno.EAGAIN: "allow more processes (ulimit -u)",
    errno.EIO: "see what the kernel's log says of this disk",
}
"""What the machine lacks, and what to do."""
_INPUTS = {
    errno.EACCES: "see that its permissions and those of the directories above let you",
    errno.EPERM: "see that its permissions let you",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "its links lead in a circle: mend them",
    errno.ENOTDIR: "a part of this path is no directory: mend it",
    errno.EISDIR: "name a file",
}
"""What is wrong with a place that was named, or that follows from one."""


def refused_by_system(error: Exception) -> OomscopeError | None:
    """Return what ``error`` comes to; None where it tells of a defect rather than of the surroundings."""
    if not isinstance(error, OSError):
        return None
    number = error.errno or 0
    where = _shown(error.filename)
    said = f"cannot be used: {os.strerror(number)}" if where else os.strerror(number)
    if number in _MACHINES:
        return MachineUnfitError(said, where=where, remedy=_MACHINES[number])
    if number in _INPUTS and where:
        return InputError(said, where=where, remedy=_INPUTS[number])
    return None


def _shown(name: object, longest: int = 200) -> str | None:
    """Return a file's name for a message, cut in the middle where it is long."""
    if not isinstance(name, str | bytes | os.PathLike):
        return None
    text = os.fsdecode(name)
    return text if len(text) <= longest else f"{text[: longest // 2]}…{text[-longest // 2 :]}"


def written(*files: Callable[[], object]) -> list[ExitCode]:
    """Write each of ``files``; tell what hindered one, and return the codes of those that are lost."""
    return [code for write in files if (code := _attempt(write)) is not ExitCode.OK]


def _attempt(write: Callable[[], object]) -> ExitCode:
    try:
        write()
    except (OutputError, ReaderGoneError, BrokenPipeError):  # of standard error: there is nobody to tell
        raise
    except OomscopeError as error:
        remark(f"oomscope: {error}")
        return ExitCode.OUTPUT_LOST
    except Exception as error:  # noqa: BLE001 - a defect of a renderer hides no measurement
        refused = refused_by_system(error)
        remark(f"oomscope: {refused or internal_error()}")
        return ExitCode.OUTPUT_LOST if refused else ExitCode.INTERNAL
    return ExitCode.OK
