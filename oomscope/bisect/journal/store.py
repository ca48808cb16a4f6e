"""Journals on disk: one file a search, named by its number, written by the process that holds its lock.

Journals of searches that ended long ago, or many searches ago, are removed. A search that runs or can be resumed stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from oomscope.bisect.journal.journal_state import (
    Closing,
    Event,
    JournalState,
    encode,
    ended_event,
    journal_state_of,
    probed_event,
    whole_lines,
)
from oomscope.bisect.results.result import BisectResult, CommitCulprit, ProbeRecord
from oomscope.bisect.search.measured import Measured
from oomscope.errors import InputError, UsageError
from oomscope.files import sync_directory

_SUFFIX = ".jsonl"
_SHOWN = 5
"""Numbers of searches that an error names."""
_PATIENCE_S = 1.0
"""Seconds to wait for a lock: a process may hold it briefly to see whether it is held."""
_ANOTHER = "see that it is a file of yours, or give --state another directory"
MOST: Final = 200
"""The newest searches are kept, whatever their age, up to ``LONGEST_S``."""
LONGEST_S: Final = 90 * 24 * 3600.0
"""Seconds since the last line of a search was written after which it is removed."""


class JournalFile:
    """A journal that this process writes to."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.number = int(path.stem)
        self._descriptor = descriptor

    def append(self, event: Event) -> None:
        """Write ``event`` as one line, which is on the disk when this returns.

        Raises:
            OSError: it cannot be written. A part of it may have been; nothing may be written after that.
        """
        line = encode(event, datetime.now(UTC).isoformat(timespec="seconds"))
        written = 0
        while written < len(line):
            written += os.write(self._descriptor, line[written:])
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


@dataclass(frozen=True)
class JournalStore:
    """All journals of a directory, which is made when the first one is begun."""

    directory: Path

    def numbers(self) -> list[int]:
        """Return the numbers of the searches, the newest last; an empty file has no first line yet and is none."""
        paths = [path for path in self.directory.glob(f"*{_SUFFIX}") if not path.is_file() or path.stat().st_size]
        names = [path.stem for path in paths]
        return sorted(int(name) for name in names if name.isdecimal() and name.isascii() and str(int(name)) == name)

    def path(self, number: int) -> Path:
        """Return the file of search ``number``."""
        return self.directory / f"{number}{_SUFFIX}"

    def read(self, number: int) -> JournalState:
        """Return the state of the journal of search ``number``; see :func:`journal_state_of`.

        Raises:
            InputError: there is none, or it cannot be read.
        """
        path = self.path(number)
        try:
            return journal_state_of(path.read_bytes(), number, str(path))
        except FileNotFoundError:
            newest = ", ".join(map(str, self.numbers()[-_SHOWN:]))
            remedy = f"the newest are {newest}" if newest else "start one: oomscope bisect GOOD..BAD"
            raise InputError(f"there is no search {number}", where=str(self.directory), remedy=remedy) from None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path), remedy=_ANOTHER) from None

    def is_running(self, number: int) -> bool:
        """Whether a living process writes to the journal of search ``number``."""
        with contextlib.suppress(OSError), self.path(number).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def begin(self) -> JournalFile:
        """Make an empty journal with a number that no search has, and lock it.

        Raises:
            OSError: it cannot be made.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        number = max(self.numbers(), default=0) + 1
        while True:
            path = self.path(number)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:  # another search was begun in the same moment
                number += 1
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            sync_directory(self.directory)
            return JournalFile(path, descriptor)

    def open(self, number: int) -> JournalFile:
        """Return the journal of search ``number``, locked and without a torn last line.

        Raises:
            InputError: there is none, or it cannot be written to.
            UsageError: the search is still running.
        """
        self.read(number)
        path = self.path(number)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(path), remedy=_ANOTHER) from None
        try:
            _lock(descriptor, number)
            if os.fstat(descriptor).st_nlink == 0:
                raise InputError("has just been removed", where=str(path), remedy="start a new search")
            with open(descriptor, "rb", closefd=False) as file:
                os.ftruncate(descriptor, whole_lines(file.read()))
        except BaseException:
            os.close(descriptor)
            raise
        return JournalFile(path, descriptor)

    def remove_old(self, now_s: float) -> None:
        """Remove journals of searches with an answer that are beyond the bounds at ``now_s`` seconds since the epoch.

        The newest one stays, and what cannot be read or removed, or is held by a process.
        """
        for newer, number in enumerate(reversed(self.numbers())):
            path = self.path(number)
            with contextlib.suppress(OSError, InputError):
                is_beyond = newer >= MOST or now_s - path.stat().st_mtime > LONGEST_S
                if newer and is_beyond:
                    with path.open("rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError where it is held
                        if self.read(number).has_answer:
                            path.unlink()


def _lock(descriptor: int, number: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_PATIENCE_S / 20)
                continue
            raise UsageError(f"search {number} is still running", remedy="wait for it, or end it first") from None
        return


@dataclass
class Journal:
    """Writes what a search asks and is answered. If it cannot be written to, the search goes on without it.

    Args:
        begin: makes the file, with its first line, once the search is known to be valid; raises OSError.
        resumed: what the search wrote before it was interrupted.
    """

    begin: Callable[[], JournalFile]
    resumed: JournalState | None = None
    problem: str = ""
    """Why it cannot be written."""
    _file: JournalFile | None = None
    _written: set[str] = field(default_factory=set)
    """The names of the measurements that a line holds."""

    def __post_init__(self) -> None:
        self._written = set(self.kept)

    @property
    def kept(self) -> Mapping[str, Measured]:
        """The measurements made before the search was interrupted, by name."""
        return self.resumed.kept if self.resumed is not None else {}

    @property
    def holds_results(self) -> bool:
        """Whether anything has been measured."""
        return bool(self._written)

    @property
    def number(self) -> int | None:
        """The number of the search; None where no journal is kept."""
        if self._file is not None:
            return self._file.number
        return self.resumed.begun.search if self.resumed is not None else None

    def open(self) -> None:
        """Begin the file, unless that was done."""
        if self._file is None and not self.problem:
            try:
                self._file = self.begin()
            except OSError as error:
                self._give_up(error)

    def probed(self, record: ProbeRecord, measured: Mapping[str, Measured]) -> None:
        """Write an answer, with those measurements it rests on that no line holds yet."""
        new = {name: each for name, each in measured.items() if name not in self._written}
        self._write(probed_event(record, new))
        self._written.update(new)

    def ended(self, result: BisectResult) -> None:
        """Write the answer of the search."""
        ends = (None if end is None else end.name for end in (result.last_good, result.first_bad))
        found = result.culprit
        culprit = f"{found.commit} {found.subject}" if isinstance(found, CommitCulprit) else None
        self._write(ended_event(Closing(result.outcome, result.message, culprit, *ends)))

    def stopped(self, why: str) -> None:
        """Write that something ended the search without an answer."""
        self._write(ended_event(Closing("stopped", why)))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: Event) -> None:
        if self._file is None or self.problem:
            return
        try:
            self._file.append(event)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        where = f" {self._file.path}" if self._file else ""
        lost = "this search cannot be resumed" if self.number is None else "a resumed search repeats what it lacks"
        self.problem = f"the journal{where} cannot be written ({error.strerror}): {lost}"
