"""Which memory snapshots a command wrote, and which of them speaks for the run.

A checkout may hold older files of the same names. Of several new ones (a rank each, say) the worst speaks: one with a
failed allocation before one without, then the one with most requested bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from oomscope.snapshot.explain.analysis import Analysis, analyse
from oomscope.snapshot.judge.verdict import failure_of
from oomscope.snapshot.read.load import load_snapshot


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card on which a recording is asked again, in bytes."""

    limit_bytes: int
    non_torch_bytes: int


@dataclass(frozen=True, kw_only=True)
class Found:
    """The recording that speaks for a run."""

    analysis: Analysis
    file: str
    """From the root of the checkout."""
    files: int
    """How many were written."""


def worst_of(files: Sequence[Path], repo: Path, *, card: Card | None) -> Found | None:
    """Return the recording that speaks for the run; None where no file shows anything.

    Args:
        files: the snapshots, below ``repo``.
        repo: the checkout.
        card: on which card to ask again; None for what the files tell.

    Raises:
        SnapshotError: one cannot be read or trusted.
        AllocatorConfError: its allocator settings have no rules here.
    """
    limit, non_torch = (None, 0) if card is None else (card.limit_bytes, card.non_torch_bytes)
    worst: tuple[tuple[bool, int], Found] | None = None
    for path in files:
        name = str(path.relative_to(repo))
        snapshot = load_snapshot(path)
        for each in analyse(snapshot, file=name, limit=limit, non_torch=non_torch):
            gravity = (failed(each), each.timeline.requested_bytes_at(each.timeline.peak_event()))
            if worst is None or gravity > worst[0]:
                worst = gravity, Found(analysis=each, file=name, files=len(files))
    return None if worst is None else worst[1]


def failed(analysis: Analysis) -> bool:
    """Whether the recorded run was refused an allocation, or would be on the card that was named."""
    return analysis.cut_short is not None or failure_of(analysis.recorded) is not None


class Stamp(NamedTuple):
    """Tells a file that was written anew."""

    inode: int
    modified_ns: int
    size: int


def stamps_of(repo: Path, pattern: str | None) -> dict[Path, Stamp]:
    """Return the files below ``repo`` that ``pattern`` names; none without one."""
    found = {}
    for path in repo.glob(pattern) if pattern is not None else ():
        if path.is_file():
            status = path.stat()
            found[path] = Stamp(status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def written_since(repo: Path, pattern: str, before: Mapping[Path, Stamp]) -> list[Path]:
    """Return those files that are new, or others than ``before``, which :func:`stamps_of` returned then."""
    return sorted(path for path, stamp in stamps_of(repo, pattern).items() if before.get(path) != stamp)
