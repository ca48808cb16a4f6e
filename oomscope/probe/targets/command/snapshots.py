"""Which of the memory snapshots that a command wrote speaks for the run.

Of several (a rank each, say) it is the worst: one with a failed allocation before one without, then the one with most
requested bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oomscope.snapshot.explaining.analysis import Analysis, analyse
from oomscope.snapshot.judging.verdict import failure_of
from oomscope.snapshot.reading.load import load_snapshot


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
