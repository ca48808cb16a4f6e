"""What ``good..bad`` means: two files where both sides are files or ``REV:path``, else two revisions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from oomscope.errors import GitError, UsageError
from oomscope.printable import quoted

_SEPARATOR = ".."
_SUFFIXES = {".yaml", ".yml", ".json", ".sh"}
"""Suffixes of names that mean a configuration file, or arguments of another program, even if it is missing."""
_REMEDY = "write GOOD..BAD: two revisions, or two configuration files (on disk or REV:path)"


@dataclass(frozen=True, kw_only=True)
class RevisionRange:
    """Two revisions as the user wrote them."""

    good: str
    """The good end; empty if it is to be looked for."""
    bad: str

    @property
    def is_open(self) -> bool:
        """Whether the good end is to be looked for."""
        return not self.good

    def __str__(self) -> str:
        return f"{self.good}{_SEPARATOR}{self.bad}"


@dataclass(frozen=True, kw_only=True)
class FileAt:
    """A file as it stands in a commit, as git names it: ``REV:path``."""

    revision: str
    path: str
    """Path from the root of the repository, with forward slashes."""
    commit: str = field(default="", compare=False)
    """Hash of ``revision``, once that is known."""

    def __str__(self) -> str:
        return f"{self.revision}:{self.path}"


@dataclass(frozen=True, kw_only=True)
class FileRange:
    """Two configuration files, each on disk or in a commit."""

    good: Path | FileAt
    bad: Path | FileAt

    def __str__(self) -> str:
        return f"{self.good}{_SEPARATOR}{self.bad}"


def parse_range(text: str) -> RevisionRange | FileRange:
    """Return what ``text`` names.

    File names may themselves hold two dots (``../a.yaml..b.yaml``): every place where the text can be cut is tried,
    and the first with a file on both sides wins: one that exists, or ``REV:path``. ``GOOD..`` ends at HEAD, as in git.

    Raises:
        UsageError: there is nothing to cut, no good side, or a side that is not a revision.
    """
    for cut in (cut for cut in range(1, len(text) - 2) if text.startswith(_SEPARATOR, cut)):
        good, bad = _file(text[:cut]), _file(text[cut + len(_SEPARATOR) :])
        if good is not None and bad is not None:
            return FileRange(good=good, bad=bad)
    good_rev, separator, bad_rev = text.partition(_SEPARATOR)
    if not separator:
        raise UsageError(f"{quoted(text)} is not a range", remedy=_REMEDY)
    if bad_rev.startswith("."):
        raise UsageError(f"{quoted(text)} names a symmetric difference, which has no good end", remedy=_REMEDY)
    for name in (good_rev, bad_rev):
        if Path(name).suffix in _SUFFIXES and not _is_file(name):
            raise UsageError("no such configuration file", where=name, remedy=_REMEDY)
    if not good_rev:
        raise UsageError(f"{quoted(text)} names no good end", remedy=f"{_REMEDY}, or add --find-good")
    return _revisions(good_rev, bad_rev or "HEAD")


def parse_ends(text: str) -> RevisionRange | FileRange:
    """Return what ``text`` names: a range, or one file or revision that is both ends.

    Raises:
        UsageError: it is neither.
    """
    if _is_file(text) or (text and _SEPARATOR not in text):
        return parse_range(f"{text}{_SEPARATOR}{text}")
    return parse_range(text)


def parse_open(text: str) -> RevisionRange:
    """Return the range that ends with ``text``, whose good end is to be looked for: ``..BAD`` or ``BAD``.

    Raises:
        UsageError: it names a good end, or no revision.
    """
    good, separator, bad = text.partition(_SEPARATOR) if _SEPARATOR in text else ("", "", text)
    if good:
        raise UsageError(f"{quoted(text)} names a good end", where="--find-good", remedy=f"write ..{bad or 'HEAD'}")
    return _revisions("", bad or ("HEAD" if separator else ""))


def _revisions(good: str, bad: str) -> RevisionRange:
    """Return the range of two revisions, of which the good one may be empty."""
    try:
        return RevisionRange(good=checked_revision(good) if good else "", bad=checked_revision(bad))
    except GitError as error:
        raise UsageError(error.message, where=error.where, remedy=error.remedy) from None


def checked_revision(revision: str) -> str:
    """Return ``revision`` if git can take it as nothing but a revision.

    Raises:
        GitError: it is empty, looks like an option, or is a range or an exclusion by itself.
    """
    odd = revision.startswith(("-", "^")) or _SEPARATOR in revision or any(ord(letter) < 32 for letter in revision)
    if not revision.strip() or odd:
        raise GitError("is not a revision", where=quoted(revision), remedy="give a commit, tag or branch")
    return revision


def _is_file(text: str) -> bool:
    """Whether ``text`` names a file; also of words that can be no name at all, where ``Path.is_file`` raises."""
    return os.path.isfile(text)  # noqa: PTH113


def _file(text: str) -> Path | FileAt | None:
    """Return the file that ``text`` names, None where it names none."""
    if _is_file(text):
        return Path(text)
    revision, colon, path = text.partition(":")
    if not (colon and revision and path) or _SEPARATOR in revision or "{" in revision:
        return None
    return FileAt(revision=revision, path=path)
