"""Explain what a path names: a snapshot file, or a folder with one file a rank. It is read and analysed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.explain.explain import explanation_of
from oomscope.snapshot.explain.explanation import Explanation
from oomscope.snapshot.explain.rank_folder import analyse_ranks
from oomscope.snapshot.explain.rank_set import RankSet
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot


class Explained(NamedTuple):
    """What was found, and the analyses behind it."""

    found: Explanation | RankSet
    analyses: tuple[Analysis, ...]
    """Of the devices of the explanation, or of the worst rank's."""


def explain_path(
    path: Path,
    *,
    device: int | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    limits: Limits | None = None,
    announce: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> Explained:
    """Return what a file tells, or what the files of a folder do.

    Args are those of :func:`~oomscope.snapshot.explain.analysis.analyse`, ``limits`` what reading may take, and
    ``announce`` is told what begins, with how many of how many are done where that is counted.

    Raises:
        SnapshotError: a file cannot be read or trusted; of a folder, none can.
        UsageError: the file knows no such device.
        AllocatorConfError: the recorded allocator settings have no rules here.
    """
    asked: dict[str, Any] = {"device": device, "limit": limit, "non_torch": non_torch, "torch_version": torch_version}
    if path.is_dir():
        ranks = analyse_ranks(path, limits=limits, announce=announce, **asked)
        return Explained(ranks.found, (ranks.worst,))
    announce("read", 0, 0)
    snapshot = load_snapshot(path, limits=limits)
    announce(f"analyse {sum(map(len, snapshot.traces)):,} events", 0, 0)
    analyses = analyse(snapshot, file=str(path), **asked)
    return Explained(explanation_of(snapshot, analyses, file=str(path)), analyses)
