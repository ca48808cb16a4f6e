"""Markdown as GitHub reads it: other people's text comes out as it is, and a document keeps to a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from oomscope.printable import printable

_PUNCTUATION = re.compile(r"[\\`*_\[\]|~$]|^[#=]|^[+-](?=[\s+-]|$)")
"""What may begin markup in a line, or is a heading, list or rule at its beginning; a backslash before any of these
stands for the character (CommonMark 0.31, 2.4)."""
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b"})
"""Tags and entities, and names of people, who would be called to a comment (a space without width ends the name)."""


def escaped(text: str) -> str:
    """Return ``text`` as a piece of a line that says just that."""
    line = " ".join(printable(text).split())
    return _NUMBERED.sub(r"\1\\\2", _PUNCTUATION.sub(r"\\\g<0>", line.translate(_ENTITIES)))


def code(text: str) -> str:
    """Return ``text`` as a code span, in which nothing is markup; also in a table."""
    line = " ".join(printable(text).split())
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{room}{line}{room}{fence}".replace("|", "\\|")


def block(lines: Iterable[str]) -> str:
    """Return ``lines`` as a block of code."""
    text = "\n".join(printable(line) for line in lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}\n"


def row(cells: Sequence[str]) -> str:
    """Return a row of a table; the cells are Markdown already."""
    return f"| {' | '.join(cells)} |\n"


def head(*columns: str) -> str:
    """Return the head of a table; a name that begins with ``>`` is of a column of numbers."""
    rule = ["--:" if name.startswith(">") else ":--" for name in columns]
    return row([name.removeprefix(">") for name in columns]) + row(rule)


def fitted(text: str, blocks: Iterable[str], room: int) -> tuple[str, int]:
    """Append as many of ``blocks`` to ``text`` as keep it within ``room`` bytes, and return how many were left out.

    A block is taken whole or not at all, and none after the first that is left out.
    """
    kept, used, waiting = [text], len(text.encode()), list(blocks)
    for number, each in enumerate(waiting):
        used += len(each.encode())
        if used > room:
            return "".join(kept), len(waiting) - number
        kept.append(each)
    return "".join(kept), 0
