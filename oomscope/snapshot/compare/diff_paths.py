"""Compare what two paths name: two snapshot files, or two folders with one file a rank; each with its checkout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from oomscope.errors import UsageError
from oomscope.snapshot.compare.aligned import Aligned, align
from oomscope.snapshot.compare.diff import Difference, Named, diff
from oomscope.snapshot.compare.diff_ranks import diff_ranks
from oomscope.snapshot.compare.matching import Text, no_text
from oomscope.snapshot.compare.sources import text_of
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot

Announce = Callable[[str, int, int], None]
"""Told what begins, and how many of how many are done where that is counted."""


class Recorded(NamedTuple):
    """One side."""

    path: Path
    source: Path | None = None
    """The checkout that was recorded, by whose text lines are matched; None where it is not at hand."""


def diff_paths(
    before: Recorded,
    after: Recorded,
    *,
    device: int | None = None,
    phase: str = "",
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Difference:
    """Return what grew from ``before`` to ``after``; other arguments are those of ``diff`` and ``load_snapshot``.

    ``announce`` is told what begins, with how many of how many are done where that is counted.

    Raises:
        UsageError: one is a folder, the other a file.
        InputError: a checkout is no folder, or there is nothing that can be compared.
        SnapshotError: a file cannot be read or trusted.
    """
    texts = [text_of(side.source) for side in (before, after)]
    if before.path.is_dir() != after.path.is_dir():
        folder, file = sorted((before.path, after.path), key=Path.is_dir, reverse=True)
        raise UsageError(f"{folder} is a folder and {file} is not", remedy="compare two files, or two folders")
    if before.path.is_dir():
        old, new = texts
        asked = {"before_text": old, "after_text": new}
        return diff_ranks(
            before.path, after.path, device=device, phase=phase, limits=limits, announce=announce, **asked
        )
    old_side, new_side = _loaded(before, after, texts, limits, announce)
    return diff(old_side, new_side, device=device, phase=phase)


def align_paths(
    before: Path,
    after: Path,
    *,
    device: int | None = None,
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Aligned:
    """Return how ``after`` differs from ``before``, allocation by allocation; arguments as of :func:`diff_paths`.

    Raises:
        UsageError: one of them is a folder.
        InputError: they have no device in common, or are too different to be of the same program.
        SnapshotError: a file cannot be read or trusted.
    """
    for path in (before, after):
        if path.is_dir():
            raise UsageError(f"{path} is a folder", where="--align", remedy="align two files, one rank after the other")
    old, new = _loaded(Recorded(before), Recorded(after), [no_text, no_text], limits, announce)
    return align(old, new, device=device)


def _loaded(
    before: Recorded, after: Recorded, texts: Sequence[Text], limits: Limits | None, announce: Announce
) -> tuple[Named, Named]:
    sides = []
    for name, side, text in zip("AB", (before, after), texts, strict=True):
        announce(f"read {name}", 0, 0)
        sides.append(Named(str(side.path), load_snapshot(side.path, limits=limits), text))
    announce("compare", 0, 0)
    old, new = sides
    return old, new
