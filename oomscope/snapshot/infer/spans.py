"""The spans of a trace by its annotations: torch's own round steps of optimizers, those of ``record_function``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from oomscope.snapshot.trace import Annotation, Trace


class Span(NamedTuple):
    """What happened between the two marks of a name."""

    name: str
    first: int
    """First event of the span, or the one that follows where it has none."""
    past: int
    """The event after the last one of the span."""


def spans_of(trace: Trace, annotations: Iterable[Annotation]) -> list[Span]:
    """Return the spans that ended before the end of the trace, in the order of their ends; none without times.

    The first one of a name that has an end alone began before the recording.
    """
    if not len(trace) or (trace.time_us < 0).any():
        return []
    started: dict[str, int] = {}
    met: set[str] = set()
    spans: list[Span] = []
    for mark in sorted(annotations, key=lambda mark: (mark.time_us, mark.stage == "START")):
        if mark.stage == "START":
            started[mark.name] = int(np.searchsorted(trace.time_us, mark.time_us))
        elif mark.stage == "END" and (mark.name in started or mark.name not in met):
            past = int(np.searchsorted(trace.time_us, mark.time_us + 1))
            spans.append(Span(mark.name, min(started.pop(mark.name, 0), past), past))
        met.add(mark.name)
    return spans
