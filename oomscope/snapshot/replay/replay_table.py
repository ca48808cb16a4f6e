"""A recording under its own allocator settings and under others: one row a setting, and what no setting can beat.

Every row is the same requests in the same order. How far the first row can be trusted is the fidelity; what the file
cannot tell is said as caveats.

What a planner could do that knew every lifetime in advance: an address for each block, no allocator being asked. A
yardstick between the packing lower bound and what allocators reach: no allocator setting is a plan, since a program
asks for memory without saying for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.constants import MIN_BLOCK, TIE_ADDRESS
from oomscope.errors import SnapshotError, UsageError
from oomscope.snapshot.lifetimes import BEFORE, Lifetimes
from oomscope.snapshot.replay.ascend import is_ascend
from oomscope.snapshot.replay.budget import Budget, budget_of
from oomscope.snapshot.replay.fidelity import Fidelity, switches_expandable
from oomscope.snapshot.replay.fixes import Rules, Tried, try_settings
from oomscope.snapshot.replay.recording import Recording, recording_of
from oomscope.snapshot.replay.replay import Replay
from oomscope.snapshot.replay.requests import fatal_event
from oomscope.snapshot.timeline import Timeline
from oomscope.snapshot.trace import Action, Snapshot, Trace
from oomscope.units import format_size

MOST_BLOCKS: Final = 20_000
"""Beyond these a plan, whose cost grows with the square of the blocks, would take longer than all replays together."""


def planned_bytes(table: Lifetimes) -> int | None:
    """Return the bytes that a first-fit plan by lifetimes needs; None where there are more than :data:`MOST_BLOCKS`.

    From the largest block to the smallest, each goes to the lowest address at which nothing lies while it lives
    (Pisarchyk and Lee 2020, "Greedy by Size"). Sizes are multiples of 512 bytes, as CUDA aligns them; a block counts
    until it is back in its pool.
    """
    blocks = np.flatnonzero(table.completed > table.born)
    if len(blocks) > MOST_BLOCKS:
        return None
    born, gone = table.born[blocks], table.completed[blocks]
    size = (table.size[blocks] + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK
    plan = _Plan(len(blocks))
    for block in np.lexsort((born, born - gone, -size)).tolist():
        plan.place(int(born[block]), int(gone[block]), int(size[block]))
    return plan.bytes


class _Plan:
    """Blocks with their addresses, ordered by address."""

    def __init__(self, room: int) -> None:
        self.bytes = 0
        self._count = 0
        self._columns = np.zeros((4, room), dtype=np.int64)

    def place(self, born: int, gone: int, size: int) -> None:
        """Put a block at the lowest address that is free for all of its life."""
        starts, ends, births, deaths = self._columns[:, : self._count]
        neighbours = np.flatnonzero((births < gone) & (deaths > born))
        start = _first_gap(starts[neighbours], ends[neighbours], size)
        at = int(np.searchsorted(starts, start))
        self._columns[:, at + 1 : self._count + 1] = self._columns[:, at : self._count]
        self._columns[:, at] = start, start + size, born, gone
        self._count += 1
        self.bytes = max(self.bytes, start + size)


def _first_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> int:
    """Return the lowest address with ``size`` bytes before the next start; ``starts`` ascend."""
    if not len(starts):
        return 0
    occupied = np.concatenate([[0], np.maximum.accumulate(ends)])
    fits = np.flatnonzero(starts - occupied[:-1] >= size)
    return int(occupied[fits[0]] if len(fits) else occupied[-1])


SCHEMA_VERSION: Final = 2
AFRESH: Final = "begun afresh"
"""Name of the row that settings begun afresh compare with."""


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """Something that the file cannot tell, and what is made of it."""

    code: str
    """``no_card``, ``unknown_start``, ``older_blocks``, ``older_order``, ``settings_changed``,
    ``settings_unheeded``, ``private_pools``, ``garbage_collection``, ``ascend``."""
    text: str


@dataclass(frozen=True, kw_only=True)
class SettingReplayed:
    """The recording under one setting."""

    name: str
    """What was added to the recorded settings; ``as recorded`` for the first row."""
    conf: str
    """The whole PYTORCH_ALLOC_CONF."""
    survives: bool
    failed_event: int | None
    """The event whose request failed."""
    peak_reserved_bytes: int
    overhead_bytes: int | None
    """Reserved less requested bytes when requested bytes are at their peak; None where a request failed before."""
    largest_overhead_bytes: int
    """The most that reserved bytes exceed requested bytes by, at whatever event."""
    margin_bytes: int | None
    """Bytes left of the device at the peak of reserved bytes; negative after a failure, None without a limit."""
    retries: int
    """How often cached memory was released to serve a request."""
    segments: int
    """Segments, or runs of mapped pages, held at the end."""
    begun_afresh: bool
    """It begins with the blocks from before the recording packed afresh, not where they were recorded."""


@dataclass(frozen=True, kw_only=True)
class ReplayTable:
    """One device of a snapshot, replayed."""

    device: int
    events: int
    conf: str
    """The recorded settings."""
    torch_version: str
    """Whose rules count; where they were found, one that stands for all that share them."""
    version_source: str
    """``given``, ``recorded`` in the file, or ``found`` by what repeats the recording best."""
    available_bytes: int | None
    """What the allocator may hold; None where the card is unknown: then nothing fails."""
    available_source: str
    """Where that is known from."""
    fidelity: Fidelity
    rows: tuple[SettingReplayed, ...]
    """The recorded settings first; then, where a setting begins afresh, the recorded ones begun so; then the others."""
    requested_peak_bytes: int
    """The packing lower bound: no allocator can reserve less."""
    requested_peak_event: int
    devices: tuple[int, ...]
    """All devices of the file with a trace."""
    planned_bytes: int | None
    """What a first-fit plan with all lifetimes known needs; None where it was not asked for or is too large."""
    caveats: tuple[Caveat, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        document["fidelity"]["share"] = self.fidelity.share
        return document


def replay_file(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    confs: Sequence[str] | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    with_plan: bool = True,
    announce: Callable[[str], None] | None = None,
) -> ReplayTable:
    """Replay one device of a snapshot under its own settings and under others.

    Args:
        snapshot: what a file held.
        device: index of the device; None: the one that recorded most allocations, of equals one whose last request
            failed.
        confs: settings to add to the recorded ones, each a PYTORCH_ALLOC_CONF; None: those worth trying.
        limit: bytes of a card in all, to replay on instead of the recorded one.
        non_torch: bytes of that card that the process held outside PyTorch.
        torch_version: whose rules count; None: see :func:`~oomscope.snapshot.replay.recording.recording_of`.
        with_plan: whether to plan offline as well.
        announce: is told of each step before it begins.

    Raises:
        SnapshotError: there is no trace, or none of the device.
        AllocatorConfError: one of ``confs``, or a recorded setting, is ill-formed or has no rules here.
    """
    announce = announce or _silent
    trace = _trace_of(snapshot, device)
    timeline = Timeline.of(trace, snapshot.segments)
    announce("fidelity")
    recording = recording_of(snapshot, timeline, torch_version)
    rules = recording.rules
    for conf in confs or ():
        AllocatorSettings.parse(conf, torch_version=rules.torch_version)
    budget: Budget = recording.budget
    baseline: Replay | None = recording.baseline
    if limit is not None:
        budget = budget_of(snapshot, timeline, rules.settings(), limit=limit, non_torch=non_torch)
        baseline = None
    tried = try_settings(
        recording.requests, rules, budget.device, candidates=confs, baseline=baseline, announce=announce
    )
    if with_plan:
        announce("offline plan")
    peak = timeline.peak_event()
    return ReplayTable(
        device=trace.device,
        events=len(trace),
        conf=rules.conf,
        torch_version=rules.torch_version,
        version_source=recording.version_source,
        available_bytes=budget.available_bytes,
        available_source=budget.source,
        fidelity=recording.fidelity,
        rows=tuple(_rows(tried, rules, timeline, budget)),
        requested_peak_bytes=timeline.requested_bytes_at(peak),
        requested_peak_event=peak,
        devices=tuple(trace.device for trace in snapshot.traces if len(trace)),
        planned_bytes=planned_bytes(timeline.lifetimes) if with_plan else None,
        caveats=tuple(_caveats(recording, budget, tried)),
    )


def _silent(_step: str) -> None:
    """Announce nothing."""


def _trace_of(snapshot: Snapshot, device: int | None) -> Trace:
    recorded = [trace for trace in snapshot.traces if len(trace)]
    if not recorded:
        raise SnapshotError(
            "the file holds no trace, so there is nothing to replay",
            remedy="record with torch.cuda.memory._record_memory_history before dumping the snapshot",
        )
    if device is None:
        return max(
            recorded, key=lambda trace: (int((trace.action == Action.ALLOC).sum()), fatal_event(trace) is not None)
        )
    for trace in recorded:
        if trace.device == device:
            return trace
    known = ", ".join(str(trace.device) for trace in recorded)
    raise UsageError(f"the file holds no trace of device {device}", where="--device", remedy=f"it has those of {known}")


def _rows(tried: Tried, rules: Rules, timeline: Timeline, budget: Budget) -> Iterator[SettingReplayed]:
    peak = timeline.peak_event()
    entries = [
        (fix.name, fix.conf, outcome, afresh)
        for fix, outcome, afresh in zip(tried.rows, tried.outcomes, tried.afresh, strict=True)
    ]
    if tried.control is not None:
        entries.insert(1, (AFRESH, rules.conf, tried.control, True))
    for name, conf, outcome, afresh in entries:
        overhead = outcome.reserved - timeline.requested[: len(outcome.reserved)]
        yield SettingReplayed(
            name=name,
            conf=conf,
            begun_afresh=afresh,
            survives=outcome.survives,
            failed_event=outcome.failed_event,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            overhead_bytes=outcome.overhead_at(peak, timeline.requested_bytes_at(peak)),
            largest_overhead_bytes=int(overhead.max(initial=0)),
            margin_bytes=outcome.margin_bytes if budget.source else None,
            retries=outcome.retries,
            segments=len(outcome.segments),
        )


def _caveats(recording: Recording, budget: Budget, tried: Tried) -> Iterator[Caveat]:
    """Yield what the file cannot tell."""
    if not budget.source:
        yield Caveat(code="no_card", text=_without_card(budget))
    yield from _start_caveats(recording, tried)
    if switches_expandable(recording.timeline):
        text = "expandable segments were switched during the recording; the replay has one setting throughout"
        yield Caveat(code="settings_changed", text=text)
    if recording.settings_doubt:
        yield Caveat(code="settings_unheeded", text=recording.settings_doubt)
    for doubt in recording.requests.pool_doubts:
        yield Caveat(code="private_pools", text=doubt)
    if "garbage_collection_threshold" in recording.rules.conf and budget.device.fraction is None:
        text = "garbage collection goes by a memory fraction, which the file does not tell; it is left out"
        yield Caveat(code="garbage_collection", text=text)
    if is_ascend(recording.timeline):
        text = (
            "block sizes are those of torch_npu (Ascend): 32 bytes are added to each request, and blocks of expandable "
            "segments are aligned to 16 KiB, which is followed in size only"
        )
        yield Caveat(code="ascend", text=text)


def _without_card(budget: Budget) -> str:
    """Return what counts as the card where the file does not tell it."""
    if not budget.is_upper_bound:
        return "the file does not tell the card, so no request can fail"
    bound = format_size(budget.device.available_bytes)
    return f"the file does not tell the card; it counts as the largest on which the failed request fails, {bound}"


def _start_caveats(recording: Recording, tried: Tried) -> Iterator[Caveat]:
    """Yield what is not known of the state before the first event."""
    initial = recording.requests.initial
    for doubt in initial.doubts if initial else ():
        yield Caveat(code="unknown_start", text=doubt)
    older = int((recording.timeline.lifetimes.born == BEFORE).sum())
    if not older:
        return
    if initial is None or initial.held is None:
        text = f"{older} blocks are older than the recording, and packed afresh"
        yield Caveat(code="older_blocks", text=text)
        return
    begin = "begin with all that was held then"
    if any(tried.afresh):
        begin = (
            "that switch expandable segments begin with them packed afresh and nothing cached, the others with all "
            "that was held then"
        )
    yield Caveat(code="older_blocks", text=f"{older} blocks are older than the recording; settings {begin}")
    if recording.rules.settings().tie_rule != TIE_ADDRESS:
        text = "which of the older segments was made first, by which equally large blocks are ordered, is not recorded"
        yield Caveat(code="older_order", text=text)
