"""Lines of a given width from text that holds paths and settings: words stay whole, and one longer than a line is
broken after a slash, a colon or the like, where the eye joins it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.text import Text

_PIECE = re.compile(r"[^/:,._=]*[/:,._=]+|[^/:,._=]+")
_WORD = re.compile(r"\S+")


def longest_piece(text: str) -> int:
    """Return how wide a column must be so that nothing in ``text`` is broken but between words and pieces of words."""
    return max((len(piece) for word in text.split() for piece in _PIECE.findall(word)), default=0)


def wrapped(text: Text, width: int) -> Text:
    """Return ``text`` in lines of at most ``width`` characters, with its styles."""
    lines = text.divide(list(_starts(text.plain, width)))
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)


def _starts(plain: str, width: int) -> Iterator[int]:
    """Yield where a new line begins."""
    start = 0
    for part_start, part_end in _parts(plain, width):
        if part_end - start > width and part_start > start:
            start = part_start
            yield start
        while part_end - start > width:
            start += width
            yield start


def _parts(plain: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what is not broken: words, and the pieces of words that are wider than a line."""
    for word in _WORD.finditer(plain):
        if len(word[0]) <= width:
            yield word.span()
            continue
        for piece in _PIECE.finditer(plain, *word.span()):
            yield piece.span()
