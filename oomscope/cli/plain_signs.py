"""What is written where an encoding lacks a character: for signs what they look like, else the escape."""

from __future__ import annotations

import codecs
from typing import Final

IN_PLAIN_SIGNS: Final = "oomscope.plain-signs"
"""The name of an error handler, as ``open`` takes it."""
_SIGNS: Final = {
    "·": "-",
    "…": "...",
    "→": "->",
    "≥": ">=",
    "²": "^2",
    "●": "*",
    "█": "#",
    "░": ".",
    "━": "-",
    "─": "-",
    "▸": ">",
    "✓": "+",
    "✗": "x",
}


def _in_plain_signs(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or _escaped(sign) for sign in lacking), error.end


def _escaped(sign: str) -> str:
    return sign.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(IN_PLAIN_SIGNS, _in_plain_signs)
