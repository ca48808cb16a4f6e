"""The words of a verdict (DESIGN: the verdict): what kind of OOM, what would have cured it, where the bytes sit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from oomscope.snapshot.sites import Site

VerdictKind = Literal["capacity", "fragmentation", "outside", "host", "headroom"]
"""``headroom``: nothing failed; the verdict states what is left."""
FailedIn = Literal["outside", "host", "program"]
"""Source of a refusal that is not the caching allocator's: a library that allocates device memory by itself, the host,
or the program, which raised ``torch.OutOfMemoryError`` of its own accord."""
Tag = Literal["foreign", "fraction", "leak", "spurious", "undecided", "later: capacity"]
"""Remarks that can accompany any kind (docs/verdict.md): other processes' memory, a memory fraction, live bytes that
grow from iteration to iteration, a request that would pass if repeated, no setting's replay decided, a later allocation
that does not fit even so. Set in ``judge/verdict.py``, kept or dropped for whole runs in ``judge/confirmed.py``; worded
in ``judge/headline.py`` and ``report/verdict_text.py``."""
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
    """Whether no allocation failed, to the end of the recording (replayed) or of the program (run)."""
    peak_reserved_bytes: int
    margin_bytes: int
    """Device bytes left at the peak of reserved memory; negative when an allocation failed."""
    is_tight: bool = False
    """Whether it was run and survived with less than ``oomscope.snapshot.judge.confirmed.TIGHT_SHARE`` of the card
    left."""
    retries: int = 0
    failed_event: int | None = None
    """Index of the first event that failed in the replay."""
    failed_in: str = ""
    """Place of the run's failure: ``backward of iteration 1``."""
    saved_bytes: int = 0
    """Bytes by which the most reserved is below that under the recorded settings, both begun the same way: with what
    was held when the recording began, or with those blocks repacked."""
    overhead_bytes: int | None = None
    """Reserved less requested bytes when requested bytes are at their peak; None where a request failed, or that was
    not asked."""
    begun_afresh: bool = False
    """Whether the blocks from before the recording were repacked, without what was cached then."""
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
    """The reason, for people."""


@dataclass(frozen=True, kw_only=True)
class LeakSuspect:
    """Requested memory that grows from iteration to iteration, and the line that most of what stays alive came from."""

    bytes_per_iteration: int
    """Mean bytes over the whole iterations after the first."""
    iterations: int
    """Whole iterations seen."""
    site: Site | None
    """Line of the leak; None where no stack was recorded."""
    further_lines: int = 0
    """Other lines of code that left memory after each iteration."""


@dataclass(frozen=True, kw_only=True)
class RestOfIteration:
    """What the iteration that failed would still have needed, if it is as the last whole one that was recorded."""

    needed_bytes: int
    """Least requested bytes live at once, with all that is live at the failure and stays."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why the run failed, or what room it has."""

    kind: VerdictKind
    headline: str
    """The verdict in one sentence."""
    requested_bytes: int | None
    """R: the request that failed; None where nothing failed, or the refusal does not say."""
    live_requested_bytes: int
    """A: requested bytes of all live blocks at that event."""
    available_bytes: int
    """D: what this process may use."""
    available_is_bound: bool = False
    """Whether D is an upper bound: a memory fraction of unknown size refused the request, or the card is known only by
    what the driver refused and the program survived."""
    reserved_bytes: int
    """Bytes that the allocator held at that event."""
    event: int | None = None
    """The failure, or the peak for headroom; None where it is no event of the trace."""
    cured_by: tuple[str, ...] = ()
    """Settings that cure it, the preferred one first. If ``confirmed``, the program ran to its end under them; else the
    same allocations pass in a replay, to the end of the recording."""
    ends_at_failure: bool = False
    """Whether the recording ends where it failed: what would have followed is not in it."""
    rest: RestOfIteration | None = None
    """Rest of the iteration that failed, by the last whole one; None where that one does not show it."""
    confirmed: bool = False
    """Whether the program was run again under the settings; what only a replay says is not in ``cured_by``."""
    uncured: bool = False
    """Whether none of the settings tried cures the fragmentation."""
    tags: tuple[Tag, ...] = ()
    leak: LeakSuspect | None = None
    """The leak, if ``leak`` is one of the tags."""
    gaps: tuple[Gap, ...] = ()
    """Gaps, which sum to ``reserved_bytes - live_requested_bytes`` plus the free device bytes, that is to
    ``available_bytes - live_requested_bytes``; empty where the segments at the failure are unknown, and where the
    caching allocator did not fail."""
    tried: tuple[FixTried, ...] = ()
    """Rows of the settings tried: the recorded ones first, then one row a setting."""
    untried: tuple[str, ...] = ()
    """Settings that were not run, because the limits of number and time left no room."""
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
