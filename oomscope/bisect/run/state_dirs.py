"""Where a search keeps its files, never inside git's own directory, and how it uses its journal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oomscope.errors import InputError, UsageError
from oomscope.files import real_path, user_folder


@dataclass(frozen=True)
class StateDirs:
    """The directories of oomscope's bisect under ``root``, and under ``state`` what cannot be made anew."""

    root: Path
    state: Path | None = None
    """Directory of what cannot be made anew; None for ``root``."""

    @classmethod
    def default(cls, environment: Mapping[str, str] = os.environ) -> StateDirs:
        """Return the user's folders for caches and for state."""
        return cls(user_folder("cache", environment), user_folder("state", environment))

    @classmethod
    def at(cls, state: Path | None) -> StateDirs:
        """Return the directories under ``--state``; the user's folders where none is given."""
        return cls.default() if state is None else cls(state.absolute())

    def make(self) -> None:
        """Make the directory, so that it is known before any probe whether it can be had.

        Raises:
            InputError: it is a file, or may not be written to.
        """
        try:
            self.checkouts.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = "it is not a directory" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            raise InputError(
                f"cannot keep results and clones there: {why}",
                where=str(self.root),
                remedy="give --state a directory that may be written to",
            ) from None

    def refuse_inside(self, git_directory: Path) -> None:
        """Refuse a place inside a repository's own directory, which a search does not write to.

        Raises:
            UsageError: it lies there, whatever links lead to it.
        """
        for place in {self.root, self.state or self.root}:
            if real_path(place).is_relative_to(real_path(git_directory)):
                raise UsageError(
                    "results and clones would be written into git's own directory",
                    where=str(place),
                    remedy=f"give --state a directory outside {git_directory}",
                )

    def resuming(self, search: int) -> str:
        """Return the command that goes on with ``search``."""
        place = "" if self == StateDirs.default() else f" --state {shlex.quote(str(self.root))}"
        return f"oomscope bisect resume {search}{place}"

    @property
    def journals(self) -> Path:
        """The journals of searches."""
        return (self.state or self.root).absolute() / "journals"

    @property
    def results(self) -> Path:
        """Probe results."""
        return self.root / "results"

    @property
    def logs(self) -> Path:
        """The output of failed probes."""
        return self.root / "logs"

    @property
    def checkouts(self) -> Path:
        """Disposable clones of running searches, and locks that say which are."""
        return self.root / "checkouts"

    @property
    def jobs(self) -> Path:
        """Orders and results of a cluster's jobs."""
        return self.root / "jobs"

    @property
    def packages(self) -> Path:
        """Folders of packages that differ from the installed ones."""
        return self.root / "packages"


@dataclass(frozen=True, kw_only=True)
class JournalUse:
    """How a request uses journals; by default a search begins one."""

    search: int | None = None
    """The number of the search to resume; None begins one."""
    words: tuple[str, ...] = ()
    """The words after ``oomscope bisect``, by which the command line can resume; none for a program's search."""


class InterruptedSearch(KeyboardInterrupt):
    """Ctrl-C in a search that can be resumed."""

    def __init__(self, remedy: str) -> None:
        super().__init__("interrupted")
        self.remedy = remedy
