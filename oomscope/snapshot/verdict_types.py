"""The words of a verdict (DESIGN: the verdict): what kind of OOM, what would have cured it, where the bytes sit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from oomscope.snapshot.sites import Site

VerdictKind = Literal["capacity", "fragmentation", "outside", "host", "headroom"]
"""``headroom``: nothing failed; the verdict states what is left."""
FailedIn = Literal["outside", "host", "program"]
"""Who refused where it was not the caching allocator: a library that allocates device memory by itself, the host, or
the program, which raised ``torch.OutOfMemoryError`` of its own accord."""
Tag = Literal["foreign", "fraction", "leak", "spurious", "undecided", "later: capacity"]
"""What can accompany any kind (docs/verdict.md): other processes' memory, a memory fraction, live bytes that grow from
iteration to iteration, a request that would pass if repeated, no setting's replay decided, a later allocation that does
not fit even so. Set in ``judge/verdict.py``, kept or dropped for whole runs in ``judge/confirmed.py``; worded in
``judge/headline.py`` and ``report/verdict_text.py``."""
How = Literal["replayed", "run"]
"""``replayed``: the recorded allocations were put to the emulated allocator. ``run``: the whole program ran again."""


@dataclass(frozen=True, kw_only=True)
class FixTried:
    """One allocator setting that was tried, and its outcome."""

    name: str
    """The setting that was added, such as ``expandable_segments:True``; ``as recorded`` for the baseline row."""
    conf: str
    """The whole PYTORCH_ALLOC_CONF."""
    how: How = "replayed"
    survives: bool
    """No allocation failed: to the end of the recording where it was replayed, to the end of the program where it was
    run."""
    peak_reserved_bytes: int
    margin_bytes: int
    """Device bytes left at the peak of reserved memory; negative when an allocation failed."""
    is_tight: bool = False
    """It was run and survives with less than ``oomscope.snapshot.judge.confirmed.TIGHT_SHARE`` of the card left."""
    retries: int = 0
    failed_event: int | None = None
    """Index of the first event that failed in the replay."""
    failed_in: str = ""
    """Where the run failed: ``backward of iteration 1``."""
    saved_bytes: int = 0
    """By how much less than under the recorded settings is reserved at most, both begun the same way: with what was
    held when the recording began, or with the blocks of then repacked."""
    overhead_bytes: int | None = None
    """Reserved less requested bytes when requested bytes are at their peak; None where a request failed, and where
    that was not asked."""
    begun_afresh: bool = False
    """The blocks from before the recording were repacked, and what was cached then is left out."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Reserved bytes without a use at the failure, by the reason why they could not serve the request."""

    reason: str
    """``split_remainder``, ``empty_segment``, ``cached_other_pool``, ``cached_other_stream``, ``private_pool``,
    ``outside_pool``, ``unknown_pool``, ``pending_free``, ``rounding``, ``granularity``, ``free_device``,
    ``cached_usable``."""
    bytes: int
    text: str
    """The same for people."""


@dataclass(frozen=True, kw_only=True)
class LeakSuspect:
    """Requested memory that grows from iteration to iteration, and the line that most of what stays alive came from."""

    bytes_per_iteration: int
    """Mean over the whole iterations after the first."""
    iterations: int
    """Whole iterations seen."""
    site: Site | None
    """None where no stack was recorded."""
    further_lines: int = 0
    """Other lines of code that left memory after each iteration."""


@dataclass(frozen=True, kw_only=True)
class RestOfIteration:
    """What the iteration that failed would still have needed, if it is as the last whole one that was recorded."""

    needed_bytes: int
    """Requested bytes live at once, at least, with all that is live at the failure and stays."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why the run failed, or what room it has."""

    kind: VerdictKind
    headline: str
    """One sentence."""
    requested_bytes: int | None
    """R: the request that failed; None where nothing failed and where who refused does not say."""
    live_requested_bytes: int
    """A: requested bytes of all live blocks at that event."""
    available_bytes: int
    """D: what this process may use."""
    available_is_bound: bool = False
    """D is an upper bound: a memory fraction of unknown size refused the request, or no more is known of the card than
    what the driver refused and the program survived."""
    reserved_bytes: int
    """What the allocator held at that event."""
    event: int | None = None
    """The failure, or the peak for headroom; None where it is no event of the trace."""
    cured_by: tuple[str, ...] = ()
    """Settings that cure it, the preferred one first. Where ``confirmed``: the program ran to its end under them. Else
    the same allocations pass in a replay, to the end of the recording."""
    ends_at_failure: bool = False
    """The recording ends where it failed: what would have followed is not in it."""
    rest: RestOfIteration | None = None
    """What the last whole iteration tells of the rest of the one that failed; None where it tells nothing."""
    confirmed: bool = False
    """The program was run again under the settings; what only a replay says is not in ``cured_by``."""
    uncured: bool = False
    """Fragmentation that none of the settings tried cures."""
    tags: tuple[Tag, ...] = ()
    leak: LeakSuspect | None = None
    """What grows, where ``leak`` is one of the tags."""
    gaps: tuple[Gap, ...] = ()
    """Sum to ``reserved_bytes - live_requested_bytes`` plus the free device bytes, that is to ``available_bytes -
    live_requested_bytes``; empty where the segments at the failure are unknown, and where the caching allocator did
    not fail."""
    tried: tuple[FixTried, ...] = ()
    """The recorded settings first, then one row a setting."""
    untried: tuple[str, ...] = ()
    """Settings that were to be run, had the limits of number and time left room."""
    packing_lower_bound_bytes: int = 0
    """Peak of requested bytes: no packing can reserve less."""
    categories: dict[str, int] = field(default_factory=dict)
    """Requested bytes by category at that event; sums to ``live_requested_bytes``."""

    @property
    def rest_exceeds(self) -> RestOfIteration | None:
        """``rest`` where that is more than the process may use."""
        if self.rest is None or self.rest.needed_bytes <= self.available_bytes:
            return None
        return self.rest

    @property
    def wanted_bytes(self) -> int:
        """A + R: what the program had and wanted more at the failure; A alone where R is unknown."""
        return self.live_requested_bytes + (self.requested_bytes or 0)

    @property
    def preferred(self) -> FixTried | None:
        """The row of the first of ``cured_by``."""
        return next((row for row in self.tried if self.cured_by and row.name == self.cured_by[0]), None)

    @property
    def gets_past(self) -> FixTried | None:
        """The first setting whose replay serves the request that failed."""
        return next((row for row in self.tried[1:] if row.how == "replayed" and self._serves(row)), None)

    def _serves(self, row: FixTried) -> bool:
        return row.survives or (row.failed_event or 0) > (self.event or 0)

    @property
    def put_off_by(self) -> FixTried | None:
        """The setting that serves the failed request but not a later one; of several the one that gets farthest."""
        if self.event is None:
            return None
        later = [fix for fix in self.tried[1:] if fix.failed_event is not None and fix.failed_event > self.event]
        return max(later, key=lambda fix: fix.failed_event or 0, default=None)
