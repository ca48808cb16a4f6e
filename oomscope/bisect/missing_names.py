"""Learns from a failed run which hunks of a commit need each other: those that use a name need those that bind it.

A commit that adds a function and calls it elsewhere changes both places; with the call alone the run ends with
``NameError: name 'f' is not defined``. What the error names says which hunks belong together, so that no other choice
without them has to be tried.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from oomscope.bisect.deltas import Changes
from oomscope.bisect.patches import Hunk

_MISSING: Final = re.compile(r"name '(\w+)'|has no attribute '(\w+)'|No module named '([\w.]+)'")
_ARGUMENT: Final = re.compile(r"keyword argument '(\w+)'|missing \d+ required [a-z -]*arguments?: '(\w+)'")
"""Of a TypeError: callers and signature disagree, so that neither goes without the other."""


def missing_name(reason: str) -> tuple[str, bool] | None:
    """Return the name that a run lacked, by its last error, and whether it is an argument; None where it says none."""
    if found := _ARGUMENT.search(reason):
        return next(filter(None, found.groups())), True
    found = _MISSING.search(reason)
    return (next(filter(None, found.groups())).rpartition(".")[2], False) if found else None


def needs_by_name(hunks: Sequence[Hunk], name: str, *, is_argument: bool) -> dict[int, Changes]:
    """Return, by number, the hunks that each of ``hunks`` needs as far as ``name`` is concerned.

    Hunks that begin to use it need those that bind it, and hunks that take its binding away need those that take uses
    away. Hunks that mention an argument need each other.
    """
    word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
    binds = re.compile(
        rb"(?:def|class|import|as|global|for)\b.*" + word.pattern + rb"|^\s*" + word.pattern + rb"\s*(?::[^=]*)?="
    )
    users, binders, unbinders, leavers = set[int](), set[int](), set[int](), set[int]()
    for number, hunk in enumerate(hunks):
        added, removed = hunk.lines(b"+"), hunk.lines(b"-")
        is_bound = any(map(binds.search, added)) or (hunk.is_whole and PurePosixPath(hunk.path).stem == name)
        if is_bound:
            binders.add(number)
        elif any(map(binds.search, removed)):
            unbinders.add(number)
        if any(map(word.search, added)) and not is_bound:
            users.add(number)
        elif any(map(word.search, removed)) and number not in unbinders:
            leavers.add(number)
    if is_argument:
        together = frozenset(users | binders)
        return dict.fromkeys(together, together)
    needs = {number: frozenset(binders) for number in users} if binders else {}
    return needs | ({number: frozenset(leavers) for number in unbinders} if leavers else {})
