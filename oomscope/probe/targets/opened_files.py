"""Notes which files outside the checkout a target opens to read: they decide what it does, and no commit has them.

Python announces each file that it is about to open, also one that is missing (:func:`sys.addaudithook`). Each process
of a target appends the path to one record at once, so a process that is killed loses nothing. Files that compiled code
opens by itself are not seen. Every Python process of a program pays for what is imported here, hence no pathlib.
"""

# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 1000
"""Files that are read back from a record: those that were opened first."""
_VARIABLE: Final = "OOMSCOPE_OPENED_FILES"
"""The record, and the checkout, in two lines."""
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARY: Final = os.path.dirname(os.path.abspath(os.__file__))
_ARCHIVE: Final = os.path.join(os.path.dirname(_LIBRARY), "python{}{}.zip".format(*sys.version_info[:2]))
_NO_INPUTS: Final = ("/proc", "/sys", "/dev", _LIBRARY, _ARCHIVE, _PACKAGE)
"""What belongs to the system, to Python, and to oomscope."""
_PACKAGES: Final = ("/site-packages/", "/dist-packages/", "/__pycache__/")
"""Parts of the paths of installed packages, which count by their versions, and of compiled modules."""


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


def read(record: Path) -> tuple[str, ...]:
    """Return the paths in a record, sorted; empty where there is none."""
    if not record.exists():
        return ()
    found = dict.fromkeys(record.read_bytes().decode(errors="replace").split("\0")[:-1])
    return tuple(sorted([*found][:MOST]))


class _Follower:
    """The files that one process has opened so far."""

    def __init__(self, record: str, checkout: str) -> None:
        self._record = record
        folders = (*_NO_INPUTS, os.path.dirname(record), *filter(None, [checkout]))
        names = {name for folder in folders for name in (os.path.abspath(folder), os.path.realpath(folder))}
        self._left_out = tuple(os.path.join(name, "") for name in names)
        self._seen = {record}

    def opens(self, path: Any, _mode: object, flags: int) -> None:
        """Note a file that is about to be opened, unless the target itself wrote it."""
        with suppress(Exception):  # the target goes on all the same
            name = "" if isinstance(path, int) else os.path.abspath(os.fsdecode(path))
            if not name or name in self._seen:
                return
            self._seen.add(name)
            is_left_out = f"{name}/".startswith(self._left_out) or any(part in name for part in _PACKAGES)
            if not (flags & _WRITES or is_left_out):
                self._append(name)

    def makes(self, path: Any, *_rest: object) -> None:
        """Leave out what lies in a folder that the target makes."""
        with suppress(Exception):
            self._left_out += (os.path.join(os.path.abspath(os.fsdecode(path)), ""),)

    def _append(self, name: str) -> None:
        record = os.open(self._record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(record, os.fsencode(name) + b"\0")
        finally:
            os.close(record)
