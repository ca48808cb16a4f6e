"""The source of what was measured, on either side of a change: by it the lines of two probes are told apart.

A commit's files are read from the repository, so the text is at hand wherever the commit is. Code that does not change
during a search (a harness beside the repository, a library, oomscope's own transformer) needs none: a line of it is
known by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from oomscope.bisect.vcs.commits import Commit
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import GitError
from oomscope.snapshot.compare.sources import LARGEST_FILE, lines_of


class Source(Protocol):
    """The source of one side."""

    def lines(self, file: str) -> Sequence[str] | None:
        """Return the lines of ``file``, named as sites name it; None where its text is not at hand."""
        ...

    def is_fixed(self, file: str) -> bool:
        """Whether ``file`` is none of those that may differ from one side to the other."""
        ...


class NoSource:
    """A side whose source is not at hand."""

    def lines(self, file: str) -> None:
        """Return None."""
        return

    def is_fixed(self, file: str) -> bool:
        """Return False."""
        return False


class FixedSource:
    """A side that runs the same code as the other."""

    def lines(self, file: str) -> None:
        """Return None: it is not needed."""
        return

    def is_fixed(self, file: str) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class CommitSource:
    """A commit's checkout.

    Args:
        repository: where the commit is.
        commit: whose files are read.
        is_built: files may stand in the checkout that the commit does not hold.
    """

    repository: Repository
    commit: Commit
    is_built: bool = False

    def lines(self, file: str) -> list[str] | None:
        """Return the lines of the commit's file; None where there is none, it is too large or no text."""
        try:
            content = self.repository.read_file(self.commit, file) if file else None
        except GitError:
            return None
        return lines_of(content) if content is not None and len(content) <= LARGEST_FILE else None

    def is_fixed(self, file: str) -> bool:
        """Whether ``file`` lies where the commit has nothing: nothing at all stands under the first part of its path.

        What lies under a folder of the commit may be a submodule's, or come or go with the next commit.
        """
        top = file.partition("/")[0]
        return not self.is_built and (not top or self.repository.objects_at([self.commit], top) == [""])


class Sources(NamedTuple):
    """Both sides."""

    before: Source
    after: Source

    def are_one(self, before: str, after: str) -> bool:
        """Whether ``before`` and ``after`` are one file, which is the same on both sides."""
        return before == after and self.before.is_fixed(before) and self.after.is_fixed(after)


NO_SOURCES: Final = Sources(NoSource(), NoSource())
SAME_CODE: Final = Sources(FixedSource(), FixedSource())
"""Sides that differ in their settings alone."""
