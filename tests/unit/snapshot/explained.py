"""A snapshot that is already read, explained."""

from __future__ import annotations

from typing import Any

from oomscope.snapshot.explain.analysis import analyse
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.trace import Snapshot


def explain(snapshot: Snapshot, *, file: str, **asked: Any) -> Explanation:
    """Return what a snapshot tells; ``asked`` are further arguments of :func:`analyse`."""
    return explanation_of(snapshot, analyse(snapshot, file=file, **asked), file=file)
