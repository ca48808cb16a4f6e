"""A recording under its own allocator settings and under others: one row a setting, and what no setting can beat.

Every row is the same requests in the same order. How far the first row can be trusted is the fidelity; what the file
cannot tell is said as caveats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.engine.constants import TIE_ADDRESS
from oomscope.document import Document
from oomscope.errors import AllocatorConfError, SnapshotError, UsageError
from oomscope.snapshot.accounting.lifetimes import BEFORE
from oomscope.snapshot.accounting.timeline import Timeline
from oomscope.snapshot.replay.ascend import is_ascend
from oomscope.snapshot.replay.budget import Budget, budget_of
from oomscope.snapshot.replay.fidelity import ASCEND, Fidelity, switches_expandable
from oomscope.snapshot.replay.fixes import Rules, Tried, try_settings
from oomscope.snapshot.replay.recording import Recording, recording_of
from oomscope.snapshot.replay.replay import Replay
from oomscope.snapshot.replay.requests import fatal_event
from oomscope.snapshot.trace import Action, Snapshot, Trace
from oomscope.torch_versions import CONF_VARIABLE
from oomscope.units import format_size

SCHEMA_VERSION: Final = 3
REPACKED: Final = "repacked"
"""Name of the row with which settings that repack older blocks are compared."""


@dataclass(frozen=True, kw_only=True)
class Caveat:
    """Something that the file does not record, and what is assumed of it."""

    code: str
    """``no_card``, ``bounded_card``, ``unknown_start``, ``older_blocks``, ``older_order``, ``settings_changed``,
    ``settings_unheeded``, ``private_pools``, ``garbage_collection``, ``ascend``."""
    text: str


@dataclass(frozen=True, kw_only=True)
class SettingReplayed:
    """The recording under one setting."""

    name: str
    """Setting added to the recorded ones; ``as recorded`` for the first row."""
    conf: str
    """The whole PYTORCH_ALLOC_CONF."""
    survives: bool
    failed_event: int | None
    """The event whose request failed."""
    peak_reserved_bytes: int
    overhead_bytes: int | None
    """Reserved less requested bytes when requested bytes are at their peak; None where a request failed before."""
    margin_bytes: int | None
    """Bytes left of the device at the peak of reserved bytes; negative after a failure, None without a limit."""
    retries: int
    """Number of times that cached memory was released to serve a request."""
    segments: int
    """Segments, or runs of mapped pages, held at the end."""
    begun_afresh: bool
    """Whether the replay begins with older blocks repacked, not where they were recorded."""


@dataclass(frozen=True, kw_only=True)
class ReplayTable(Document):
    """One device of a snapshot, replayed."""

    device: int
    events: int
    conf: str
    """The recorded settings."""
    torch_version: str
    """Torch whose rules count; if they were found, one version for all that share them."""
    version_source: str
    """Source of the version: ``given``, ``recorded`` in the file, or ``found`` by what repeats the recording best."""
    available_bytes: int | None
    """Bytes that the allocator may hold, or their upper bound; None where the card is unknown: then nothing fails."""
    available_source: str
    """Source of the available bytes."""
    fidelity: Fidelity
    rows: tuple[SettingReplayed, ...]
    """Rows: the recorded settings; the same with older blocks repacked, if another setting repacks them; the others."""
    peak_requested_bytes: int
    """The packing lower bound: no allocator can reserve less."""
    peak_event: int
    devices: tuple[int, ...]
    """All devices of the file with a trace."""
    caveats: tuple[Caveat, ...]
    available_is_bound: bool = False
    """Whether ``available_bytes`` is only an upper bound."""
    replayed_bytes: int | None = None
    """Bytes that the allocator may hold in the replays; if only bounds are known, the least that is proven."""
    schema_version: int = SCHEMA_VERSION


def _check(conf: str, torch_version: str) -> None:
    try:
        AllocatorSettings.parse(conf, torch_version=torch_version)
    except AllocatorConfError as error:
        where = (error.where or CONF_VARIABLE).replace(CONF_VARIABLE, f"setting {conf}", 1)
        raise AllocatorConfError(error.message, where=where, remedy=error.remedy) from None


def replay_file(
    snapshot: Snapshot,
    *,
    device: int | None = None,
    confs: Sequence[str] | None = None,
    limit: int | None = None,
    non_torch: int = 0,
    torch_version: str | None = None,
    announce: Callable[[str], None] = lambda _step: None,
) -> ReplayTable:
    """Replay one device of a snapshot under its own settings and under others.

    Without ``device`` it is the one that recorded most allocations, of equals one whose last request failed. ``confs``
    are added to the recorded settings; None: those worth trying. A card of ``limit`` bytes takes the place of the
    recorded one. ``announce`` is told of each step before it begins.

    Raises:
        SnapshotError: there is no trace, or none of the device.
        AllocatorConfError: one of ``confs``, or a recorded setting, is ill-formed or has no rules here.
    """
    trace = _trace_of(snapshot, device)
    timeline = Timeline.of(trace, snapshot.segments)
    announce("fidelity")
    recording = recording_of(snapshot, timeline, torch_version)
    rules = recording.rules
    for conf in confs or ():
        _check(conf, rules.torch_version)
    budget: Budget = recording.budget
    baseline: Replay | None = recording.baseline
    if limit is not None:
        budget = budget_of(snapshot, timeline, rules.settings(), limit=limit, non_torch=non_torch)
        baseline = None
    tried = try_settings(
        recording.requests, rules, budget.device, candidates=confs, baseline=baseline, announce=announce
    )
    peak = timeline.peak_event()
    return ReplayTable(
        device=trace.device,
        events=len(trace),
        conf=rules.conf,
        torch_version=rules.torch_version,
        version_source=recording.version_source,
        available_bytes=budget.available_bytes,
        available_is_bound=budget.available_is_bound,
        replayed_bytes=budget.device.available_bytes if budget.source else None,
        available_source=budget.source,
        fidelity=recording.fidelity,
        rows=tuple(_rows(tried, rules, timeline, budget)),
        peak_requested_bytes=timeline.requested_bytes_at(peak),
        peak_event=peak,
        devices=tuple(trace.device for trace in snapshot.traces if len(trace)),
        caveats=tuple(_caveats(recording, budget, tried)),
    )


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
    rows = zip(tried.rows, tried.outcomes, strict=True)
    entries = [(fix.name, fix.conf, outcome, fix.begun_afresh) for fix, outcome in rows]
    if tried.control is not None:
        entries.insert(1, (REPACKED, rules.conf, tried.control, True))
    for name, conf, outcome, afresh in entries:
        yield SettingReplayed(
            name=name,
            conf=conf,
            begun_afresh=afresh,
            survives=outcome.survives,
            failed_event=outcome.failed_event,
            peak_reserved_bytes=outcome.peak_reserved_bytes,
            overhead_bytes=outcome.overhead_at(peak, timeline.requested_bytes_at(peak)),
            margin_bytes=outcome.margin_bytes if budget.source else None,
            retries=outcome.retries,
            segments=len(outcome.segments),
        )


def _caveats(recording: Recording, budget: Budget, tried: Tried) -> Iterator[Caveat]:
    initial = recording.requests.initial
    older = int((recording.timeline.lifetimes.born == BEFORE).sum())
    starts_as_recorded = initial is not None and initial.held is not None
    texts: list[tuple[str, str | None]] = [
        ("no_card", None if budget.source else "the file does not name the card, so no request can fail"),
        ("bounded_card", _bounded_card(budget)),
        *(("unknown_start", doubt) for doubt in (initial.doubts if initial else ())),
        ("older_blocks", _older_blocks(older, tried, starts_as_recorded=starts_as_recorded)),
    ]
    if older and starts_as_recorded and recording.rules.settings().tie_rule != TIE_ADDRESS:
        order = "the file does not record the age of older segments, which orders blocks of equal size"
        texts.append(("older_order", order))
    if switches_expandable(recording.timeline):
        switched = "expandable segments were switched during the recording; the replay has one setting throughout"
        texts.append(("settings_changed", switched))
    texts.append(("settings_unheeded", recording.settings_doubt))
    texts += (("private_pools", doubt) for doubt in recording.requests.pool_doubts)
    if "garbage_collection_threshold" in recording.rules.conf and budget.device.fraction is None:
        text = "garbage collection depends on the memory fraction, which the file does not record; it is not replayed"
        texts.append(("garbage_collection", text))
    if is_ascend(recording.timeline):
        texts.append(("ascend", f"torch_npu (Ascend) adds 32 bytes to each request; {ASCEND}"))
    yield from (Caveat(code=code, text=text) for code, text in texts if text)


def _bounded_card(budget: Budget) -> str | None:
    """Return on which card settings are replayed where the true one lies between bounds."""
    least = budget.device.available_bytes
    if budget.most_bytes is None or least == budget.most_bytes:
        return None
    return (
        f"the allocator could hold {format_size(least)} or more, and no more than {format_size(budget.most_bytes)}: "
        f"settings are replayed with {format_size(least)}, and one that fails then may pass with more"
    )


def _older_blocks(older: int, tried: Tried, *, starts_as_recorded: bool) -> str | None:
    """Return how replays begin where blocks are older than the recording."""
    if not older:
        return None
    if not starts_as_recorded:
        return f"{older} blocks are older than the recording, and are repacked"
    begin = "begin with all that was held then"
    if any(row.begun_afresh for row in tried.rows):
        begin = (
            "that switch expandable segments begin with them repacked and nothing cached, the others with all "
            "that was held then"
        )
    return f"{older} blocks are older than the recording; settings {begin}"
