"""What ``oomscope explain`` finds out about a snapshot: plain data that reports render and JSON carries.

Sizes are bytes; ``null`` stands for what the file cannot tell. ``categories``, ``sites``, ``modules`` and
``size_classes`` each sum to ``peak.requested_bytes``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from oomscope.document import Document, json_of
from oomscope.snapshot.accounting.timeline import Reconciliation, Timeline
from oomscope.snapshot.explain.composition import Composition
from oomscope.snapshot.explain.pins import Pins
from oomscope.snapshot.judge.headline import Refused
from oomscope.snapshot.judge.leaks import Suspect
from oomscope.snapshot.replay.segment_map import SegmentMap
from oomscope.snapshot.sites import Site
from oomscope.snapshot.verdict_types import Verdict
from oomscope.units import Bytes

SCHEMA_VERSION: Final = 3
MOST_SEGMENTS: Final = 20
"""Pinned segments in a JSON document; their number is always given."""


@dataclass(frozen=True, kw_only=True)
class Instant:
    """The state of the allocator right after one event."""

    event: int
    """The event; -1: before the first one, or there is none."""
    requested_bytes: int
    """Bytes that the program asked for and holds."""
    allocated_bytes: int | None
    """Bytes of blocks that the program holds, rounded and with ends that were not split off; None where the segments of
    that moment cannot be recovered."""
    active_bytes: int | None
    """Bytes of these blocks, and of freed ones that a stream may still use."""
    reserved_bytes: int
    """Bytes that the allocator holds of the driver."""
    is_exact: bool
    """Whether block sizes are the file's own; else those of blocks freed later follow from requests by the rounding
    rules."""

    @classmethod
    def of(cls, timeline: Timeline, here: SegmentMap) -> Instant:
        """Return the state that ``here`` maps."""
        return cls(
            event=here.event,
            requested_bytes=timeline.requested_bytes_at(here.event),
            allocated_bytes=here.allocated_bytes if here.is_known else None,
            active_bytes=here.active_bytes if here.is_known else None,
            reserved_bytes=timeline.reserved_bytes_at(here.event),
            is_exact=here.is_exact,
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """When and where in the program an event happened; empty and -1 where unknown."""

    phase: str
    iteration: int
    site: Site | None
    category: str


@dataclass(frozen=True, kw_only=True)
class PendingBytes:
    """Blocks that the program freed and that wait for a stream, of one line."""

    site: Site
    stream: int
    """The stream that they were allocated on."""
    bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class PoolBytes:
    """A private pool (``torch.cuda.MemPool``, CUDA graphs): its segments serve no other pool."""

    pool_id: tuple[int, int]
    segments: int
    reserved_bytes: int
    active_bytes: int


@dataclass(frozen=True, kw_only=True)
class IterationsFound:
    """The iterations that the recording shows."""

    count: int
    """Number of iterations whose end was recorded."""
    source: str
    confidence: str


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Bytes at chosen events: in each slice of the recording, where most was live; no peak is lost."""

    events: tuple[int, ...]
    requested: tuple[int, ...]
    reserved: tuple[int, ...]
    categories: dict[str, tuple[int, ...]]
    """Requested bytes by category; at each event they sum to ``live``."""


@dataclass(frozen=True, kw_only=True)
class DeviceExplanation(Document):
    """One device of a snapshot."""

    also_written: ClassVar[tuple[str, ...]] = ("overhead_at_peak_bytes", "reconciled")
    not_written: ClassVar[tuple[str, ...]] = (
        *("composition", "curves", "failed_at", "is_predicted", "place", "reconciliation", "shows_end_only"),
        "suspects",
    )

    index: int
    events: int
    truncated: bool
    """Whether blocks were alive before the first event: the recording began later, or its ring wrapped."""
    reserved_before_bytes: int
    """Bytes reserved before the first event."""
    idle_before_bytes: int
    """Bytes of these that the recording never uses; if there are any, an earlier peak is not in the file."""
    torch_version: str
    """Torch whose allocator's rules count; if they were found, one version for all that share them."""
    version_source: str
    """Source of the version: ``given``, ``recorded`` in the file, or ``found`` by what repeats the recording best."""
    conf: str
    """The allocator configuration in force."""
    fidelity: float | None
    """Share of the segment events that recording and replay under that configuration have in common; None where
    neither has any."""
    shows_end_only: bool
    """Whether nothing was allocated or freed while recorded, so that the peak is the memory in the snapshot."""
    available_bytes: int | None
    """D: bytes that the process could hold; None where neither the file nor the user says."""
    available_source: str
    available_is_bound: bool
    """Whether D, and with it the margin, is only an upper bound."""
    peak: Bytes
    """The most requested and the most reserved bytes, which may be two moments."""
    at_peak: Instant
    """State of the allocator at the peak of requested bytes."""
    place: Place
    end: Instant
    verdict: Verdict
    composition: Composition
    """Requested bytes at the peak."""
    failure: Composition | None
    """Requested bytes at the failed allocation; None where none failed."""
    failed_at: Place | None
    is_predicted: bool
    """Whether the failure is that of a replay on the card that the user named; the recorded job did not fail."""
    survived_failures: int
    """Allocations that failed in the recorded job, which ran on; 0 where the last one ended it."""
    served: Refused | None
    """Request that the recorded card refused at the end and the card that the user names serves."""
    pins: Pins | None
    """Pinned segments at the failed allocation, else at the peak; None where the segments cannot be recovered."""
    pending: tuple[PendingBytes, ...]
    """Pending blocks at the peak."""
    pools: tuple[PoolBytes, ...]
    """Memory of the pools at the end."""
    iterations: IterationsFound
    suspects: tuple[Suspect, ...]
    curves: Curves
    missing: tuple[str, ...]
    reconciliation: Reconciliation
    caveats: tuple[str, ...]

    @property
    def knows_card(self) -> bool:
        """Whether D is known, and with it the margins of settings tried."""
        return self.available_bytes is not None and not self.available_is_bound

    @property
    def overhead_at_peak_bytes(self) -> int:
        """Reserved bytes at the peak that no live request explains."""
        return self.at_peak.reserved_bytes - self.at_peak.requested_bytes

    @property
    def reconciled(self) -> bool:
        """Whether the walk through the events ends at the segments' own counters, and its peak fits into segments."""
        return self.reconciliation.difference_bytes == 0 and self.overhead_at_peak_bytes >= 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; the settings tried stand beside the verdict, and unknown margins are null."""
        verdict = asdict(self.verdict) | {"available_bytes": self.available_bytes}
        tried = verdict.pop("tried")
        unknown_margin = {} if self.knows_card else {"margin_bytes": None}
        return super().to_json() | {
            "at_peak": asdict(self.at_peak) | {"place": asdict(self.place)},
            "verdict": verdict,
            "tried": [fix | unknown_margin for fix in tried],
            **_composition_json(self.composition),
            "modules": json_of(self.composition.modules),
            "modules_are_files": self.composition.modules_are_files,
            "size_classes": json_of(self.composition.sizes),
            "failure": self._failure_json(),
            "served": self.served._asdict() if self.served else None,
            "pins": self._pins_json(),
            "leaks": json_of(self.suspects),
            "timeline": asdict(self.curves),
            "difference_bytes": self.reconciliation.difference_bytes,
            "discrepancies": json_of(self.reconciliation.reasons),
        }

    def _failure_json(self) -> dict[str, Any] | None:
        if self.failure is None or self.failed_at is None:
            return None
        facts = {"event": self.failure.event, "is_predicted": self.is_predicted, "place": asdict(self.failed_at)}
        return facts | {"requested_bytes": self.failure.bytes} | _composition_json(self.failure)

    def _pins_json(self) -> dict[str, Any] | None:
        if self.pins is None:
            return None
        shown = replace(self.pins, segments=self.pins.segments[:MOST_SEGMENTS])
        return asdict(shown) | {"segment_count": len(self.pins.segments)}


def _composition_json(parts: Composition) -> dict[str, Any]:
    sites = [
        {**asdict(row.site), "category": row.category, "bytes": row.bytes, "count": row.count} for row in parts.sites
    ]
    return {"categories": json_of(parts.categories), "sites": sites}


@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """The explanation of a snapshot file."""

    file: str
    devices: tuple[DeviceExplanation, ...]
    rank: int | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def worst(self) -> Explanation:
        """The explanation itself; of a folder's ranks it is that of the worst."""
        return self
