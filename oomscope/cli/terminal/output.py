"""How a command answers: results to standard output, remarks to standard error, files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomscope.cli.terminal.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, InputError, MachineUnfitError, OomscopeError, UsageError
from oomscope.files import real_path, try_place, write_whole
from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from oomscope.report.parts import Report


_FREE: set[Path] = set()
"""Names that belonged to no file when the command began, until it has written there itself: what stands there by then
is somebody else's, such as that of the same command beside this one."""


def say(text: str) -> None:
    """Print a line for people to standard output."""
    _write_line(printable(text))


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document to standard output."""
    import json

    text = json.dumps(document, indent=None, allow_nan=False)
    _write_line(text.replace("\x7f", "\\u007f"))  # the one control character that JSON leaves as it is


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_report(report: Report | RenderableType) -> None:
    """Print a report to standard output: with colour on a terminal, as plain text elsewhere."""
    from oomscope.report.text.console import result_console, show

    show(result_console(), report)


def remark(text: str) -> None:
    """Print a line for people to standard error."""
    sys.stderr.write(f"{printable(text)}\n")


def offer_more() -> None:
    """Say on a terminal how to see more than a short report."""
    if sys.stderr.isatty():
        remark("Every table: --full. A page with charts: --html FILE.")


def refuse_existing(path: Path | None, *, force: bool, option: str) -> None:
    """Refuse, before any work is done, to overwrite a file of the user's, or to promise one that cannot be written.

    Raises:
        InputError: the file exists and ``force`` is not set, its folder does not exist, or nothing can be written
            there.
    """
    if path is None:
        return
    _FREE.discard(real_path(path))
    if path.is_dir():
        raise InputError("is a directory", where=str(path), remedy=f"give a file name to {option}")
    if path.exists() and not force:
        raise InputError("file exists", where=str(path), remedy="choose another name or give --force")
    if not path.absolute().parent.is_dir():
        raise InputError("its folder does not exist", where=str(path), remedy="make the folder first")
    try:
        try_place(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    if not force and not path.is_symlink():  # one that leads nowhere is replaced
        _FREE.add(real_path(path))


def may_replace(path: Path) -> bool:
    """Whether a file at ``path`` may be replaced: not where :func:`refuse_existing` found none, and no one asked to."""
    return real_path(path) not in _FREE


def refuse_one_place(*places: tuple[str, Path | None]) -> None:
    """Refuse, before any work is done, to write two files to one place, or one over what is read.

    Args:
        places: each an option, or what else names the file, and the path; None where it is not given.

    Raises:
        UsageError: two of them are one file, also by way of links.
    """
    names: dict[Path, str] = {}
    for name, path in places:
        if path is None:
            continue
        other = names.setdefault(real_path(path), name)
        if other != name:
            raise UsageError(f"{other} and {name} name one file", where=str(path), remedy="give each of them its own")


def write_file(path: Path, content: str | bytes, *, is_told: bool = True) -> None:
    """Write ``content`` to ``path``, which holds the whole of it or what it held before, and say so if it ``is_told``.

    Raises:
        InputError: the place cannot be written to, or somebody else wrote there since :func:`refuse_existing` found it
            free.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with named_refusal(path) as force:
        write_whole(path, data, force=force)
    if is_told:
        remark(f"Wrote {path}")


@contextlib.contextmanager
def named_refusal(path: Path) -> Iterator[bool]:
    """Yield whether a file may be replaced at ``path`` while the block writes there, and name what hinders it.

    Raises:
        InputError: the place cannot be written to, or somebody else wrote there since the command began.
    """
    real = real_path(path)
    try:
        yield may_replace(path)
    except FileExistsError as error:
        what = "file exists: somebody else wrote it meanwhile"
        raise InputError(what, where=str(path), remedy="choose another name or give --force") from error
    except OSError as error:
        raise _unwritable(path, error) from error
    _FREE.discard(real)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write: {error.strerror}", where=str(path), remedy="choose another place")


def internal_error() -> OomscopeError:
    """Return what to say of the exception that is being handled, a defect of oomscope: one line, and where the rest is.

    Its traceback is kept in a temporary file.
    """
    import traceback

    kind, value, _ = sys.exc_info()
    log = keep_log(traceback.format_exc())
    what = f"{kind.__name__ if kind else 'error'}: {value}"
    evidence = f" with the traceback in {log}" if log else ", and how it came about"
    return OomscopeError(f"internal error: {what}", remedy=f"please report it{evidence}")


def keep_log(text: str) -> Path | None:
    """Write ``text`` to a temporary file that stays, and return its path; None where no file can be written."""
    log = new_log(".txt")
    if log is None:
        return None
    try:
        log.write_bytes(text.encode(errors="backslashreplace"))  # a target may say half a character
    except OSError:
        return None
    return log


def new_log(suffix: str = ".log") -> Path | None:
    """Make an empty temporary file that stays; None where none can be made."""
    import tempfile

    with (
        contextlib.suppress(OSError),
        tempfile.NamedTemporaryFile(prefix="oomscope-", suffix=suffix, delete=False) as file,
    ):
        return Path(file.name)
    return None


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
    errno.ELOOP: "its links form a circle: correct them",
    errno.ENOTDIR: "a part of this path is not a directory: correct it",
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
