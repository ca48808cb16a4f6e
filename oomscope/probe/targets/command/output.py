"""What a command printed, read line by line: the number that was asked for, and whether memory ran out.

Both streams count, in the order in which they were written. A line may be as long as it likes; only its beginning is
looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oomscope.errors import InputError, TargetError
from oomscope.probe.analysis.failures import Refusal, refusal_in_text
from oomscope.units import parse_size

LONGEST: Final = 64 * 1024
"""Bytes of a line that are looked at."""
_PRINTS: Final = "print the number on a line of its own, or mend --metric-regex"
_SHOWN: Final = 160
_TAIL: Final = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The number that a command printed."""

    bytes: int
    line: str
    """The line that it stood in, cut where it is long."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What counts of an output."""

    match: tuple[str, str] | None = None
    """What the group of the expression held last, and the line."""
    refusal: Refusal | None = None
    """The last line that says, in torch's words, that memory ran out."""


def read_output(descriptor: int, start: int, metric: re.Pattern[str] | None) -> Said:
    """Return what counts of the file open as ``descriptor``, from byte ``start`` on."""
    match: tuple[str, str] | None = None
    refusal: Refusal | None = None
    for line in _lines(descriptor, start):
        refusal = refusal_in_text(line) or refusal
        for found in metric.finditer(line) if metric else ():
            if found[1] is not None:
                match = (found[1], line)
    return Said(match=match, refusal=refusal)


def tail_of(descriptor: int, start: int) -> str:
    """Return the end of the file open as ``descriptor``, of what stands after byte ``start``."""
    size = os.fstat(descriptor).st_size
    begin = max(start, size - _TAIL)
    return os.pread(descriptor, size - begin, begin).decode(errors="replace")


def metric_in(said: Said, pattern: str) -> Metric:
    """Return the number.

    Raises:
        TargetError: nothing matched ``pattern``, or what did is not a size.
    """
    if said.match is None:
        raise TargetError(f"the command printed nothing that {pattern!r} matches", remedy=_PRINTS)
    text, line = said.match
    shown = line.strip()[:_SHOWN]
    try:
        size = parse_size(text)
    except InputError:
        raise TargetError(f"the command printed {text!r}, which is not a size", where=shown, remedy=_PRINTS) from None
    number = text.strip()
    if "." in number and not number[-1].isalpha() and float(number.replace("_", "").replace(",", "")) % 1:
        raise TargetError(
            f"the command printed {text!r}, a fraction without a unit",
            where=shown,
            remedy="put the unit into the group",
        )
    return Metric(bytes=size, line=shown)


def _lines(descriptor: int, start: int) -> Iterator[str]:
    """Yield the beginnings of the lines of a file."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(start)
        whole = True
        while piece := file.readline(LONGEST):
            if whole:
                yield piece.decode(errors="replace").rstrip("\r\n")
            whole = piece.endswith(b"\n")
