"""How a command answers: results to standard output, remarks to standard error, files whole or not at all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomscope.errors import InputError, OomscopeError, UsageError
from oomscope.files import real_path, try_place, write_whole
from oomscope.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def print_report(report: RenderableType) -> None:
    """Print a report to standard output: with colour on a terminal, as plain text elsewhere."""
    from oomscope.report.text.console import result_console, show

    show(result_console(), report)


def remark(text: str) -> None:
    """Print a line for people to standard error."""
    sys.stderr.write(f"{printable(text)}\n")


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
