"""The header of one commit, decoded as the commit declares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import git

ABBREVIATED = 10
"""Characters of a hash that people are shown."""
_UNDECODED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit's header."""

    hash: str
    tree: str
    parents: tuple[str, ...]
    author: str
    date: str
    """Author date, ISO 8601; empty where it lies beyond the year 9999."""
    subject: str

    @property
    def short(self) -> str:
        """The beginning of the hash, for people."""
        return self.hash[:ABBREVIATED]

    @property
    def is_merge(self) -> bool:
        """Whether it has more than one parent."""
        return len(self.parents) > 1


def header_of(commit: git.Commit, *, is_cut: bool) -> Commit:
    """Return the header of ``commit``.

    Args:
        commit: as GitPython reads it.
        is_cut: a shallow clone lacks its parents; they are left out.
    """
    author, message = _words(commit)
    return Commit(
        hash=commit.hexsha,
        tree=commit.tree.hexsha,
        parents=() if is_cut else tuple(parent.hexsha for parent in commit.parents),
        author=author,
        date=_date(commit),
        subject=_subject(message),
    )


def _words(commit: git.Commit) -> tuple[str, str]:
    """Return the author's name and the message, in the encoding that the commit declares.

    GitPython takes UTF-8 for granted: its test for the header ``encoding`` (git-commit(1), DISCUSSION) never holds.
    """
    author, message = commit.author.name or "", str(commit.message)
    if _UNDECODED not in author + message:
        return author, message
    header, _, body = commit.data_stream.read().partition(b"\n\n")
    declared = re.search(rb"^encoding (\S+)$", header, re.MULTILINE)
    written = re.search(rb"^author (.*?) ?<", header, re.MULTILINE)
    try:
        encoding = declared[1].decode("ascii") if declared else "utf-8"
        return (written[1] if written else b"").decode(encoding, "replace"), body.decode(encoding, "replace")
    except (LookupError, UnicodeDecodeError):
        return author, message


def _date(commit: git.Commit) -> str:
    try:
        return commit.authored_datetime.isoformat()
    except (ValueError, OverflowError):
        return ""


def _subject(message: str) -> str:
    """Return the first paragraph of ``message`` in one line, as git's ``%s`` (git-log(1), PRETTY FORMATS)."""
    lines = dropwhile(lambda line: not line, (line.rstrip(" \t\r") for line in message.split("\n")))
    return " ".join(takewhile(bool, lines))
