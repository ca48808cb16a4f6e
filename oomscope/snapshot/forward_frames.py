"""The forward operation behind an event of backward, as torch's snapshots tell it: ``forward_frames`` of the event.

Under ``torch.autograd.set_detect_anomaly`` torch copies the traceback of the node that runs into each event, outermost
frame first, in the words of Python's ``traceback`` (PyTorch, ``torch/csrc/cuda/memory_snapshot.cpp``). A recording of
oomscope's own says a number there, and what the numbers stand for once, under :data:`PLACES_KEY` of the document. Read
in a process that knows no numpy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

PLACES_KEY: Final = "oomscope_forward"
"""The top-level key of the document: a list of ``[module, [[file, line, function], …]]``, innermost frame first."""

_NUMBER: Final = re.compile(r"oomscope:(\d{1,9})")
_FRAME: Final = re.compile(r'\s*File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9})(?:, in (?P<name>[^\n]*))?')


def number_text(number: int) -> str:
    """Return what stands in an event for entry ``number`` of the places."""
    return f"oomscope:{number}"


def number_in(text: str) -> int | None:
    """Return the number that ``text`` stands for; None where it is a traceback."""
    match = _NUMBER.fullmatch(text)
    return int(match[1]) if match else None


def frames_in(texts: Iterable[str]) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame of a traceback, innermost first; what is no frame is left out."""
    found = [match for text in texts for match in [_FRAME.match(text)] if match]
    return [(match["file"], int(match["line"]), match["name"] or "") for match in reversed(found)]


def places_document(places: Sequence[tuple[Iterable[Sequence[Any]], str]]) -> list[Any]:
    """Return what goes under :data:`PLACES_KEY` for stacks and modules, in the order of their numbers."""
    return [[module, [list(frame) for frame in stack]] for stack, module in places]
