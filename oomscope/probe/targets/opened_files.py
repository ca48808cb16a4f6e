"""Notes which files outside the checkout a target opens to read: they decide what it does, and no commit has them.

Python announces each file that it is about to open, also one that is missing (:func:`sys.addaudithook`). Each process
of a target appends it at once to one record, with what tells it from a changed one, so a process that is killed loses
nothing. Files that compiled code opens by itself are not seen, nor names relative to an open folder (``dir_fd``). Every
Python process of a program pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH100, PTH116, PTH117, PTH118, PTH120
from __future__ import annotations

import os
import sys
from contextlib import suppress
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 1000
"""Most names that a process notes, and that are read back: the first ones."""
_VARIABLE: Final = "OOMSCOPE_OPENED_FILES"
"""The record, and the checkout, in two lines."""
_MISSING: Final = "missing"
"""State of a file that is not there."""
_MADE: Final = "made"
"""Mark of a file or folder that the target itself makes."""
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARY: Final = os.path.dirname(os.path.abspath(os.__file__))
_ARCHIVE: Final = os.path.join(os.path.dirname(_LIBRARY), "python{}{}.zip".format(*sys.version_info[:2]))
_NO_INPUTS: Final = ("/proc", "/sys", "/dev", _LIBRARY, _ARCHIVE, _PACKAGE)
"""What belongs to the system, to Python, and to oomscope."""
_PACKAGES: Final = ("/site-packages/", "/dist-packages/")
"""Parts of the paths of installed packages, which count by their versions."""
_CACHE: Final = "/__pycache__/"


def variables(record: str, checkout: str) -> dict[str, str]:
    """Return the variable that makes each Python process of a started program follow its files."""
    return {_VARIABLE: f"{record}\n{checkout}"}


def arm_from_environment() -> None:
    """Follow the files of this process if its environment asks for it."""
    record, _, checkout = os.environ.get(_VARIABLE, "").partition("\n")
    if record:
        follow(record, checkout)


def follow(record: str, checkout: str) -> None:
    """Append to the file ``record`` what this process and its forks open, but for files of ``checkout``."""
    follower = _Follower(record, checkout)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            follower.opens(*arguments)
        elif event == "os.mkdir":
            follower.makes(*arguments)

    sys.addaudithook(heard)


def read(record: Path) -> tuple[str, ...] | None:
    """Return the paths in a record, sorted, without what the target made itself; empty where there is none.

    None if one of them has changed since it was opened: another run finds something else.
    """
    if not record.exists():
        return ()
    lines = record.read_bytes().decode(errors="replace").split("\0")[:-1]
    states: dict[str, str] = {}
    for state, _, name in (line.partition(" ") for line in lines):
        states.setdefault(name, state)
    folders = tuple(os.path.join(name, "") for name, state in states.items() if state == _MADE)
    found = [name for name, state in states.items() if state != _MADE and not name.startswith(folders)][:MOST]
    return tuple(sorted(found)) if all(_state_of(name) == states[name] for name in found) else None


class _Follower:
    """The files that one process has opened so far."""

    def __init__(self, record: str, checkout: str) -> None:
        self._record = record
        self._checkout = _prefixes(checkout) if checkout else ()
        self._left_out = _prefixes(*_NO_INPUTS, os.path.dirname(record))
        self._seen = {record}
        self._noted = 0

    def opens(self, path: Any, mode: object, flags: int) -> None:
        """Note a file that is about to be opened: its state if the target may read it, or that the target makes it."""
        if self._noted >= MOST or isinstance(path, int):
            return
        with suppress(Exception):  # the target goes on all the same
            given = os.fsdecode(path)
            if mode is None and not os.path.isabs(given):  # os.open: perhaps relative to an open folder
                return
            name = os.path.abspath(given)
            if name not in self._seen:
                self._seen.add(name)
                self._note(name, flags)

    def makes(self, path: Any, *_rest: object) -> None:
        """Note a folder that the target is about to make: what lies in it is the target's own."""
        if self._noted < MOST:
            with suppress(Exception):
                name = os.path.abspath(os.fsdecode(path))
                if not (os.path.lexists(name) or self._is_left_out(name)):
                    self._append(_MADE, name)

    def _note(self, name: str, flags: int) -> None:
        folder, is_compiled, file = name.rpartition(_CACHE)
        if is_compiled:
            name = os.path.join(folder, f"{file.split('.')[0]}.py")
        if name.startswith(self._checkout):  # a link in it may lead elsewhere
            name = os.path.realpath(name)
        if self._is_left_out(name):
            return
        state = _state_of(name)
        is_written = flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_TRUNC
        if is_written or (state == _MISSING and flags & os.O_CREAT):
            state = _MADE if state == _MISSING else ""
        if state:
            self._append(state, name)

    def _is_left_out(self, name: str) -> bool:
        folders = (*self._left_out, *self._checkout)
        return f"{name}/".startswith(folders) or any(part in name for part in _PACKAGES)

    def _append(self, state: str, name: str) -> None:
        self._noted += 1
        record = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(record, os.fsencode(f"{state} {name}\0"))
        finally:
            os.close(record)


def _prefixes(*folders: str) -> tuple[str, ...]:
    names = {name for folder in folders for name in (os.path.abspath(folder), os.path.realpath(folder))}
    return tuple(os.path.join(name, "") for name in names)


def _state_of(name: str) -> str:
    """Return size and time of a file, or that it is missing; an empty string for a folder."""
    try:
        found = os.stat(name)
    except OSError:
        return _MISSING
    return "" if S_ISDIR(found.st_mode) else f"{found.st_size}:{found.st_mtime_ns}"
