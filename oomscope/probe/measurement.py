"""What a backend hands over once the target has run: raw observations, the same from ``virtual`` and from ``cuda``.

A :class:`Measurement` holds facts only. Peaks, categories, sites and the verdict are derived from it by
``oomscope.probe.analysis.analyse``, so both backends are judged by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from oomscope.probe.result import Failure, RankSummary
from oomscope.snapshot.trace import UNKNOWN_MOMENT, Frame, Moment, Segment, Snapshot, Stack, Trace
from oomscope.snapshot.verdict_types import FailedIn, LeakSuspect

if TYPE_CHECKING:
    from oomscope.snapshot.accounting.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class DeviceBudget:
    """The card as this process sees it, in bytes."""

    gpu: str
    """The card's name: a key of ``oomscope.virtual.cards.CARDS`` on virtual, the driver's name for it on cuda."""
    limit_bytes: int
    """The card in all: its real total, or the limit that was asked for."""
    non_torch_bytes: int
    """Device bytes of this process outside the caching allocator (context, NCCL, cuBLAS handles)."""
    other_process_bytes: int
    """Device bytes that other processes hold."""
    card_bytes: int | None = None
    """The real card's total where a smaller one is played on it; None where ``limit_bytes`` is the card."""
    fraction: float | None = None
    """The allocator's memory fraction, which plays a smaller card (of ``card_bytes``), else the one that the program
    set."""

    @property
    def available_bytes(self) -> int:
        """D: what the caching allocator may hold; never negative."""
        left = max(0, self.limit_bytes - self.non_torch_bytes - self.other_process_bytes)
        return left if self.own_fraction is None else min(left, int(self.own_fraction * self.limit_bytes))

    @property
    def own_fraction(self) -> float | None:
        """The fraction that the program set; None where it set none, and where one plays a smaller card."""
        return None if self.card_bytes is not None else self.fraction

    def under(self, fraction: float) -> DeviceBudget:
        """Return the budget of a program that set a memory ``fraction`` itself; 1 is none."""
        return self if fraction >= 1 or self.fraction is not None else replace(self, fraction=fraction)


@dataclass(frozen=True, kw_only=True)
class AllocatorStats:
    """The allocator's own counters, named as in ``torch.cuda.memory_stats``; bytes are those of pool ``all``."""

    allocated_bytes_peak: int
    active_bytes_peak: int
    reserved_bytes_peak: int
    requested_bytes_peak: int
    requested_bytes_current: int
    """Requested bytes when the run ended."""
    allocated_bytes_current: int
    """Bytes in allocated blocks when the run ended."""
    num_alloc_retries: int = 0
    num_ooms: int = 0


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """What the caching allocator refused last, as it stood at that instant: before anything was unwound or freed."""

    requested_bytes: int
    """R, in bytes."""
    message: str
    """The text of the error that the program saw; empty where only the exception has it."""
    moment: Moment = UNKNOWN_MOMENT
    stack: Stack = ()
    """Innermost frame first; empty where it was not recorded."""
    event: int | None = None
    """Index of the ``OOM`` event in the trace; None where the ring lost it or there is none."""
    segments: tuple[Segment, ...] = ()
    """The allocator's segments and blocks at the failure; empty where they could not be copied."""
    device_free_bytes: int | None = None
    """Free bytes of the card at the failure."""


@dataclass(frozen=True, kw_only=True)
class RefusedElsewhere:
    """A failure for lack of memory without a refusal by the caching allocator, as the target's exception reports it."""

    failed_in: FailedIn
    message: str
    """The text of the error, in one line."""
    requested_bytes: int | None = None
    """R; None where the error does not say."""
    moment: Moment = UNKNOWN_MOMENT
    stack: Stack = ()
    """Innermost frame first."""


OutOfMemory = FailedAllocation | RefusedElsewhere


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """What a virtual card could not answer as a real one would."""

    reads: int = 0
    """Copies to the host of bytes that it does not hold."""
    lines: tuple[Frame, ...] = ()
    """Lines that made the first of these reads."""
    unsupported: tuple[str, ...] = ()
    """Functions of CUDA's libraries that answered that they are not supported."""
    unknown_workspaces: tuple[str, ...] = ()
    """Functions and operations whose workspace only NVIDIA's closed libraries know."""
    not_computed: tuple[str, ...] = ()
    """Operations that the host could not compute, where it computes what kernels would."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of one target on one rank."""

    snapshot: Snapshot
    """Segments at the end, and the trace of the probed device as ``snapshot.traces[0]``."""
    device: DeviceBudget
    stats: AllocatorStats
    oom: FailedAllocation | None = None
    """The last failed allocation, also where the target caught the error and went on."""
    demand_after: int | None = None
    """Largest requested bytes of the same run without a limit; None where it was not run."""
    leak_after: LeakSuspect | None = None
    """Leak in the run without a limit, or in a longer one."""
    stops_growing: bool = False
    """Whether what grows from iteration to iteration in this run does not in a longer one."""
    pinned_bytes: int = 0
    """Peak pinned host bytes."""
    iterations: int | None = None
    """Whole iterations of a program; None where the target ran as many as it was asked for."""
    unstepped: int | None = None
    """Optimizers of a program that had not stepped when it was ended; None where the target is no program."""
    saved: str = ""
    """Checkpoints that a program saved, for a sentence; empty for none."""
    uses_cards: int = 1
    """Number of cards that the process used; one of them is reported."""
    growing: tuple[str, ...] = ()
    """Lists and dictionaries that held more tensors after each of the last iterations, by name."""
    truncated: bool = False
    """Whether the recorded ring wrapped: the beginning of the trace is missing."""
    step_times_s: tuple[float, ...] = ()
    """Device time of each completed iteration; empty on virtual, which has no clock."""
    allocator_conf: str = ""
    """The PYTORCH_ALLOC_CONF that was in force."""
    unanswered: Unanswered = Unanswered()
    """What the card could not answer, for all processes of the target."""
    rank: int | None = None
    """Rank in a world that the program starts itself; else None."""
    world_size: int | None = None
    """Ranks of that world."""
    ranks: tuple[RankSummary, ...] = ()
    """Every rank of that world that used a card."""
    other_peaks: tuple[int, ...] = ()
    """The most that each further process of the target allocated on the card; bytes, the most first."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions besides ``machine.fingerprint.versions``: driver, CUDA, allocator rules."""
    notes: tuple[str, ...] = ()
    """Sentences for the report: what was assumed, substituted or could not be recorded."""

    @property
    def trace(self) -> Trace:
        """The trace of the probed device."""
        return self.snapshot.traces[0]

    @cached_property
    def timeline(self) -> Timeline:
        """Its requested and reserved bytes over the events."""
        from oomscope.snapshot.accounting.timeline import Timeline  # needs numpy, which a recorded program may lack

        return Timeline.of(self.trace, self.snapshot.segments)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one run of a target ended, and what was measured."""

    measurement: Measurement | None
    out_of_memory: OutOfMemory | None = None
    """Failure for lack of memory, if that ended the target."""
    failure: Failure | None = None
    unanswered: Unanswered = Unanswered()
    """What a virtual card could not answer in a run that failed; otherwise the measurement has it."""
