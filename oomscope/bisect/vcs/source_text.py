"""The source of what was measured, on either side of a change: by it the lines of two probes are told apart.

A commit's files are read from the repository. Code that does not change during a search (a harness beside the
repository, a library, oomscope's own transformer) needs no text: a line of it is known by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError
from oomscope.units import MiB

LARGEST_FILE: Final = 4 * MiB


@dataclass(frozen=True)
class Source:
    """The source of one side; without a repository there is no text.

    Args:
        repository: where the commit is.
        commit: whose files are read.
        all_fixed: every file is the same on the other side.
        is_built: files may stand in the checkout that the commit does not hold.
    """

    repository: Repository | None = None
    commit: Commit | None = None
    all_fixed: bool = False
    is_built: bool = False

    def lines(self, file: str) -> Sequence[str] | None:
        """Return the lines of ``file``; None where there is none, it is too large or no text."""
        if self.repository is None or self.commit is None or not file:
            return None
        try:
            content = self.repository.read_file(self.commit, file)
        except GitError:
            return None
        return lines_of(content) if content is not None and len(content) <= LARGEST_FILE else None

    def is_fixed(self, file: str) -> bool:
        """Whether ``file`` is the same on both sides: a commit has nothing under the first part of its path.

        What lies under a folder of the commit may be a submodule's, or come or go with the next commit.
        """
        if self.all_fixed or self.repository is None or self.commit is None or self.is_built:
            return self.all_fixed
        top = file.partition("/")[0]
        return not top or self.repository.objects_at([self.commit], top) == [""]


class Sources(NamedTuple):
    """Both sides."""

    before: Source
    after: Source

    def are_one(self, before: str, after: str) -> bool:
        """Whether ``before`` and ``after`` are one file, which is the same on both sides."""
        return before == after and self.before.is_fixed(before) and self.after.is_fixed(after)


NO_SOURCES: Final = Sources(Source(), Source())
SAME_CODE: Final = Sources(Source(all_fixed=True), Source(all_fixed=True))
"""Sides that differ in their settings alone."""


def lines_of(content: bytes) -> list[str] | None:
    """Return the lines of a source file as Python counts them; None where it is not text.

    ``str.splitlines`` would break a line at a form feed as well, and all numbers after it would be wrong.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return text.removesuffix("\n").replace("\r\n", "\n").replace("\r", "\n").split("\n")
