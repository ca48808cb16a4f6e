"""A whole run in few points, so that a report can lay two runs over each other without their snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from oomscope.snapshot.timeline import Timeline

POINTS: Final = 400
"""Points of a curve at most: wide enough for a page, small enough to be kept with every result."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """Live and reserved bytes over the events of a run, cut into equal slices; all fields are equally long."""

    requested_bytes: tuple[int, ...]
    """The most requested bytes alive at once in each slice."""
    reserved_bytes: tuple[int, ...]
    """The most that the allocator held in each slice."""
    iterations: tuple[int, ...]
    """The iteration in which each slice begins; -1 before the first."""

    @classmethod
    def of(cls, timeline: Timeline, points: int = POINTS) -> Self | None:
        """Return the curves of ``timeline``; None where nothing was recorded."""
        import numpy as np

        from oomscope.snapshot.comparing.overlay import iterations_of
        from oomscope.snapshot.timeline import slice_starts

        if not len(timeline.requested):
            return None
        starts = slice_starts(len(timeline.requested), points)
        return cls(
            requested_bytes=tuple(np.maximum.reduceat(timeline.requested, starts).tolist()),
            reserved_bytes=tuple(np.maximum.reduceat(timeline.reserved, starts).tolist()),
            iterations=tuple(iterations_of(timeline.trace)[starts].tolist()),
        )

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read back what ``dataclasses.asdict`` made of it."""
        return cls(**{name: tuple(values) for name, values in document.items()})
