"""Results on standard output, remarks on standard error, files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from oomscope.cli.terminal.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, InputError, MachineUnfitError, OomscopeError, UsageError
from oomscope.files import real_path, try_place, write_whole
from oomscope.printable import printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

    from oomscope.report.exports.summary import Summarised
    from oomscope.report.parts import Report

Form: TypeAlias = Literal["whole", "summary"]
"""Which JSON document of a result to print."""


def imported(path: str) -> Any:
    """Import the module of ``path``, ``module:attribute``, and return the attribute."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def late(path: str, *given: Any, **named: Any) -> Callable[[], Any]:
    """Return the call of the function at ``path``, whose module is imported when it is made."""
    return lambda: imported(path)(*given, **named)


def say(text: str) -> None:
    """Print a line for people to standard output."""
    _write_line(printable(text))


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document to standard output."""
    import json

    text = json.dumps(document, indent=None, allow_nan=False)
    _write_line(text.replace("\x7f", "\\u007f"))  # the one control character that JSON leaves as it is


def print_document(result: Summarised, form: Form) -> None:
    """Print the JSON document of a result, or its summary."""
    if form == "whole":
        print_json(result.to_json())
        return
    from oomscope.report.exports.summary import summary_of

    print_json(summary_of(result))


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
    """Print on a terminal how to see more than a short report."""
    if sys.stderr.isatty():
        remark("Every table: --full. A page with charts: --html FILE.")


def refuse_existing(path: Path | None, *, force: bool, option: str) -> None:
    """Refuse, before any work is done, to overwrite a file of the user's, or one that cannot be written.

    Raises:
        InputError: the file exists and ``force`` is not set, its folder does not exist, or nothing can be written
            there.
    """
    if path is None:
        return
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


def write_file(path: Path, content: str | bytes, *, is_announced: bool = True) -> None:
    """Write ``content`` to ``path``, whole or not at all, and print its name if ``is_announced``.

    Raises:
        InputError: the place cannot be written to.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    try:
        write_whole(path, data, force=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    if is_announced:
        remark(f"Wrote {path}")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write: {error.strerror}", where=str(path), remedy="choose another place")


def written(*files: Callable[[], object]) -> list[ExitCode]:
    """Call each of ``files``, which writes one; report what fails, and return the codes of those that are lost."""
    return [code for write in files if (code := _attempt(write)) is not ExitCode.OK]


def _attempt(write: Callable[[], object]) -> ExitCode:
    try:
        write()
    except (OutputError, ReaderGoneError, BrokenPipeError):  # a failure of standard error cannot be reported
        raise
    except OomscopeError as error:
        remark(f"oomscope: {error}")
        return ExitCode.OUTPUT_LOST
    except Exception as error:  # noqa: BLE001 - a defect of a renderer hides no measurement
        refused = refused_by_system(error)
        remark(f"oomscope: {refused or internal_error()}")
        return ExitCode.OUTPUT_LOST if refused else ExitCode.INTERNAL
    return ExitCode.OK


PROBE_TABLES = ("sites", "categories", "phases", "tried", "events")
BISECT_TABLES = ("steps", "probes", "grown_sites")
EXPLAIN_TABLES = ("categories", "sites", "modules", "tried", "pins", "timeline", "ranks")
SWEEP_TABLES = ("combinations",)
DIFF_TABLES = ("changed_lines", "changed_totals")
"""Functions of :mod:`oomscope.report.exports.dataframes`, each of which becomes a file of its name."""


def tables_of(names: Sequence[str], result: Any) -> dict[str, pd.DataFrame]:
    """Return the tables ``names`` of ``result``."""
    from oomscope.report.exports import dataframes

    return {name: getattr(dataframes, name)(result) for name in names}


_CSV = "--csv"


@dataclass(frozen=True)
class Files:
    """The files that the options of a command ask for."""

    places: Mapping[str, Path | None]
    """Places by option; None for a file that is not asked for. ``--csv`` names a folder; the probe itself writes
    ``--snapshot``."""
    tables: Sequence[str] = ()
    """The names of the tables that may be written into the folder."""

    def refuse(self, *read: tuple[str, Path | None], force: bool) -> None:
        """Refuse what cannot be written in the end, or would be written over what is read."""
        named = [(option, path) for option, path in self.places.items() if option != _CSV]
        folder = self.places.get(_CSV)
        tables = [] if folder is None else [folder, *(folder / f"{name}.csv" for name in self.tables)]
        refuse_one_place(*read, *named, *((_CSV, path) for path in tables))
        if folder is not None and folder.is_dir():
            named += [(_CSV, path) for path in tables[1:]]
        elif folder is not None and folder.exists():
            raise InputError("is not a directory", where=str(folder), remedy=f"give a folder to {_CSV}")
        else:
            named.append((_CSV, folder))
        for option, path in named:
            refuse_existing(path, force=force, option=option)
        if self.places.get("--png") is not None:
            from oomscope.report.charts.png import require_matplotlib

            require_matplotlib()

    def write(self, makes: Mapping[str, Callable[[], Any]], *, is_announced: bool = True) -> list[ExitCode]:
        """Write the requested files, and return an exit code for each failed write.

        This comes before the report, whose reader may leave at any line. A file that cannot be written takes neither
        the report nor another file with it.

        Args:
            makes: by option, what makes the content: text or bytes, of ``--csv`` the tables by name.
            is_announced: whether names are printed.
        """
        lost: list[ExitCode] = []
        for option, make in makes.items():
            if (path := self.places[option]) is not None:
                lost += written(partial(self._write, option, path, make, is_announced=is_announced))
        return lost

    def _write(self, option: str, path: Path, make: Callable[[], Any], *, is_announced: bool) -> None:
        if option == _CSV:
            write_tables(path, make(), self.tables)
        else:
            write_file(path, make(), is_announced=is_announced)


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame], names: Sequence[str]) -> None:
    """Write ``tables``, and remove those of ``names`` that an earlier run left: the folder holds one result.

    Raises:
        InputError: the place cannot be written to.
    """
    texts = {name: _csv(table) for name, table in tables.items()}
    try:
        folder.mkdir(exist_ok=True)
        for name in set(names) - set(tables):
            (folder / f"{name}.csv").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    for name, text in texts.items():
        write_file(folder / f"{name}.csv", text)


def _csv(table: pd.DataFrame) -> str:
    """Return one table; an index with a name is its first column."""
    texts = table.select_dtypes(["string", "category"])
    harmless = {str(name): column.map(_harmless, na_action="ignore") for name, column in texts.items()}
    return table.assign(**harmless).to_csv(index=table.index.name is not None, lineterminator="\n")


def _harmless(text: str) -> str:
    """Return ``text`` without control characters, and quoted by ``'`` where a spreadsheet would take it for a formula.

    Source: OWASP, "CSV Injection".
    """
    shown = printable(text)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@", "\t")) else shown


def internal_error() -> OomscopeError:
    """Return one line on the exception that is being handled, a defect; its traceback is kept in a temporary file."""
    import traceback

    kind, value, _ = sys.exc_info()
    log = keep_log(traceback.format_exc())
    what = f"{kind.__name__ if kind else 'error'}: {value}"
    evidence = f" with the traceback in {log}" if log else ", with the steps that led to it"
    return OomscopeError(f"internal error: {what}", remedy=f"please report it{evidence}")


def keep_log(text: str) -> Path | None:
    """Write ``text`` to a temporary file that stays, and return its path; None where no file can be written."""
    log = new_log(".txt")
    with contextlib.suppress(OSError):
        if log is not None:
            log.write_bytes(text.encode(errors="backslashreplace"))  # a target may print half a character
            return log
    return None


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
    errno.ENOSPC: "free space on its disk, or point TMPDIR and --state to another disk",
    errno.EDQUOT: "free space within your quota, or point TMPDIR and --state elsewhere",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "set TMPDIR, XDG_STATE_HOME and XDG_CACHE_HOME to writable directories",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOMEM: "free memory on this machine",
    errno.EAGAIN: "allow more processes (ulimit -u)",
}
"""What the machine lacks, and what to do."""
_INPUTS = {
    errno.EACCES: "check its permissions and those of the directories above",
    errno.EPERM: "check its permissions",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "its links form a circle: correct them",
    errno.ENOTDIR: "a part of this path is not a directory: correct it",
    errno.EISDIR: "name a file",
}
"""What is wrong with a path, and what to do."""


def refused_by_system(error: Exception) -> OomscopeError | None:
    """Return the error of a machine or path that ``error`` means; None where it is a defect."""
    if not isinstance(error, OSError):
        return None
    number, name = error.errno or 0, error.filename
    where = os.fsdecode(name)[-200:] if isinstance(name, str | bytes | os.PathLike) else None
    message = f"cannot be used: {os.strerror(number)}" if where else os.strerror(number)
    if number in _MACHINES:
        return MachineUnfitError(message, where=where, remedy=_MACHINES[number])
    if number in _INPUTS and where:
        return InputError(message, where=where, remedy=_INPUTS[number])
    return None
