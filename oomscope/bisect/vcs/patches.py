"""A commit's change as hunks: pure text, taken apart and put together again so that git applies any choice of them.

What has no hunks (a file that came or went, a mode, binary content) is one piece by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

_RANGES = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: (.*))?")
_WHOLE = (b"old mode ", b"new file mode ", b"deleted file mode ", b"GIT binary patch", b"Binary files ")
"""Beginnings of header lines of a file that is changed as a whole (git-diff(1), "Generating patch text with -p")."""


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """One piece of a commit's change. Lines are counted from 1."""

    path: str
    """Path from the root of the repository."""
    header: bytes
    """What a patch says of the file before its hunks."""
    body: bytes
    """Lines of the hunk after its first one; for a whole file all that follows the header."""
    is_whole: bool = False
    """Whether the file comes, goes, or changes in a way that has no lines."""
    old_start: int = 0
    old_lines: int = 0
    new_start: int = 0
    new_lines: int = 0
    section: str = ""
    """The function that the hunk lies in, as git guesses it."""
    offset: int = 0
    """New minus old start, had no hunk before this one changed the file's length (git's convention for empty sides)."""

    @property
    def name(self) -> str:
        """Name for people: the file, and its lines before and after."""
        if self.is_whole:
            return self.path
        return f"{self.path} @@ -{self.old_start},{self.old_lines} +{self.new_start},{self.new_lines} @@"

    @cached_property
    def added(self) -> frozenset[int]:
        """The lines that it writes, by their number after the whole change."""
        return frozenset(_numbers(self._lines, self.new_start, skipped=b"-", wanted=b"+"))

    @cached_property
    def removed(self) -> frozenset[int]:
        """The lines that it takes away, by their number before the change."""
        return frozenset(_numbers(self._lines, self.old_start, skipped=b"+", wanted=b"-"))

    @property
    def written(self) -> list[bytes]:
        """The lines that stand in place of the old ones once it is made, context included."""
        return [line[1:] for line in self._lines if line[:1] in (b" ", b"+")]

    def lines(self, mark: bytes) -> list[bytes]:
        """Return the lines that it writes (``b"+"``) or takes away (``b"-"``), also of a whole text file."""
        return [line[1:] for line in self.body.split(b"\n") if line[:1] == mark]

    @property
    def _lines(self) -> list[bytes]:
        return [] if self.is_whole else self.body.split(b"\n")[:-1]


def parse_patch(patch: bytes) -> tuple[Hunk, ...]:
    """Return the hunks of ``patch``, which ``git diff-tree --patch --binary --full-index --no-renames`` wrote."""
    return tuple(hunk for file in _files(patch) for hunk in _hunks_of(file))


def compose(hunks: Iterable[Hunk]) -> bytes:
    """Return a patch of ``hunks`` alone, in the order of the whole patch, with line numbers that are exact."""
    parts: list[bytes] = []
    for header, group in groupby(hunks, key=lambda hunk: hunk.header):
        parts.append(header)
        grown = 0
        for hunk in group:
            if not hunk.is_whole:
                start = hunk.old_start + hunk.offset + grown
                ranges = f"-{hunk.old_start},{hunk.old_lines} +{start},{hunk.new_lines}"
                parts.append(f"@@ {ranges} @@\n".encode())
                grown += hunk.new_lines - hunk.old_lines
            parts.append(hunk.body)
    return b"".join(parts)


def applied(content: bytes, hunks: Iterable[Hunk]) -> bytes:
    """Return ``content`` with ``hunks`` of its file made, which are not whole and come in their order."""
    lines, grown = content.split(b"\n"), 0
    for hunk in hunks:
        begin = hunk.old_start + grown - (1 if hunk.old_lines else 0)
        lines[begin : begin + hunk.old_lines] = hunk.written
        grown += hunk.new_lines - hunk.old_lines
    return b"\n".join(lines)


def _files(patch: bytes) -> Iterator[list[bytes]]:
    """Yield the lines of each file, newlines included. A line of content never begins as a file does."""
    file: list[bytes] = []
    for line in (line + b"\n" for line in patch.split(b"\n")[:-1]):
        if line.startswith(b"diff --git ") and file:
            yield file
            file = []
        file.append(line)
    if file:
        yield file


def _hunks_of(lines: list[bytes]) -> Iterator[Hunk]:
    begin = next((place for place, line in enumerate(lines) if _RANGES.match(line)), len(lines))
    head = lines[:begin]
    path, header = _path(head), b"".join(head)
    if begin == len(lines) or any(line.startswith(_WHOLE) for line in head):
        yield Hunk(path=path, header=header, body=b"".join(lines[begin:]), is_whole=True)
        return
    starts = [place for place in range(begin, len(lines)) if lines[place].startswith(b"@@ ")]
    grown = 0
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        match = _RANGES.match(lines[start])
        if match is None:
            raise ValueError(f"no hunk: {lines[start]!r}")
        old_start, old_lines, new_start, new_lines = (1 if part is None else int(part) for part in match.groups()[:4])
        hunk = Hunk(
            path=path,
            header=header,
            body=b"".join(lines[start + 1 : end]),
            old_start=old_start,
            old_lines=old_lines,
            new_start=new_start,
            new_lines=new_lines,
            section=(match[5] or b"").decode(errors="replace").strip(),
            offset=new_start - old_start - grown,
        )
        grown += hunk.new_lines - hunk.old_lines
        yield hunk


def _path(head: list[bytes]) -> str:
    """Return the file's path: where it stands after the change, or stood before it if it is gone."""
    for mark, prefix in ((b"+++ ", b"b/"), (b"--- ", b"a/")):
        for line in head:
            name = line.removeprefix(mark).rstrip(b"\n").removesuffix(b"\t")
            if line.startswith(mark) and name != b"/dev/null":
                return name.removeprefix(prefix).decode(errors="surrogateescape")
    return head[0].rstrip(b"\n").rpartition(b" b/")[2].decode(errors="surrogateescape")


def _numbers(lines: list[bytes], start: int, *, skipped: bytes, wanted: bytes) -> Iterator[int]:
    number = start
    for line in lines:
        mark = line[:1]
        if mark == wanted:
            yield number
        if mark not in (skipped, b"\\"):
            number += 1
