"""Which allocator settings are tried on a run, and the table of how each one went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from oomscope.allocator import AllocatorSettings
from oomscope.allocator.alloc_conf import EXPANDABLE, merged, pairs_of
from oomscope.errors import AllocatorConfError
from oomscope.snapshot.replay.replay import Device, Replay, fitting, replay
from oomscope.snapshot.replay.requests import Requests
from oomscope.snapshot.verdict_types import FixTried
from oomscope.torch_versions import DEFAULT_RULES
from oomscope.units import format_size

AS_RECORDED: Final = "as recorded"
CANDIDATES: Final = (
    EXPANDABLE,
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "max_split_size_mb:1024",
    "roundup_power2_divisions:8",
    "max_split_size_mb:256,roundup_power2_divisions:8",
)
"""Settings in the order in which they are tried, which is that of ``cured_by``."""
WITHOUT_ROUNDING: Final = ("roundup_power2_divisions:1",)
"""Setting tried, after expandable segments, only where the recorded settings round: the waste may be all that is
lacking. One division is no rounding (``round_size``, PyTorch CUDACachingAllocator.cpp)."""
WITH_FRACTION: Final = ("garbage_collection_threshold:0.8",)
"""Setting tried only under a memory fraction; without one the allocator ignores it (CUDACachingAllocator.cpp)."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The rows of the table, and the replays behind them; the recorded settings first."""

    rows: tuple[FixTried, ...]
    outcomes: tuple[Replay, ...]
    control: Replay | None = None
    """The replay under the recorded settings with older blocks repacked, with which repacked rows compare; None where
    there is no such row, or the recorded settings repack too."""

    @property
    def baseline(self) -> Replay:
        """The replay under the recorded settings."""
        return self.outcomes[0]

    @property
    def cures(self) -> tuple[str, ...]:
        """Names of the settings under which everything passed, in the order in which they were tried.

        Where the recorded settings pass too with older blocks repacked, a repacked row shows nothing.
        """
        survivors = (row for row in self.rows[1:] if row.survives)
        return tuple(row.name for row in survivors if not (row.begun_afresh and self.is_undecided))

    @property
    def is_undecided(self) -> bool:
        """Whether repacking the older blocks gets past the failure, so that rows that do so prove no setting."""
        if self.control is None or self.baseline.failed_event is None:
            return False
        return self.control.failed_event is None or self.control.failed_event > self.baseline.failed_event


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Settings and version of an allocator."""

    conf: str = ""
    """The PYTORCH_ALLOC_CONF in force."""
    torch_version: str = DEFAULT_RULES

    @property
    def rounds(self) -> bool:
        """Whether the configuration has sizes rounded up to parts of a power of two."""
        return any(key == "roundup_power2_divisions" for key, _ in pairs_of(self.conf))

    def settings(self) -> AllocatorSettings:
        """Return what the configuration means to that torch.

        Raises:
            AllocatorConfError: it is ill-formed or has no rules here.
        """
        return AllocatorSettings.parse(self.conf, torch_version=self.torch_version)


def try_settings(
    requests: Requests,
    rules: Rules,
    device: Device,
    *,
    candidates: Sequence[str] | None = None,
    baseline: Replay | None = None,
    announce: Callable[[str], None] = lambda _setting: None,
) -> Tried:
    """Replay ``requests`` under ``rules`` and under each of ``candidates`` (None: all worth trying) on top of them.

    Where the state before the first request was recovered, settings begin with it as well, for what the allocator held
    then it also holds under them; but not those that switch expandable segments, since the segments of then are not
    theirs: they begin with the blocks repacked. ``baseline`` is the replay under ``rules``, where it was made
    already; ``announce`` is told of each setting before it is tried.

    Raises:
        AllocatorConfError: the recorded settings cannot be replayed.
    """
    if candidates is None:
        candidates = _candidates(rules, device)
    recorded = rules.settings()
    if not baseline:
        announce(AS_RECORDED)
    baseline = baseline or replay(requests, recorded, device, at_recorded_addresses=True)
    tries = [_Try(AS_RECORDED, rules.conf, fitting(requests, device), baseline)]
    for addition in candidates:
        conf = merged(rules.conf, addition)
        if conf == merged(rules.conf, ""):
            continue
        try:
            settings = replace(rules, conf=conf).settings()
        except AllocatorConfError:  # that version of torch has no such setting
            continue
        announce(addition)
        keeps_segments = settings.expandable_segments == recorded.expandable_segments
        begun = tries[0].requests if keeps_segments else requests.begun_afresh
        tries.append(_Try(addition, conf, begun, replay(begun, settings, device)))
    afresh = [each.requests is not requests and bool(requests.held.segments) for each in tries]
    control = replay(requests.begun_afresh, recorded, device) if any(afresh) and not afresh[0] else None
    rows = [
        _row(each, (is_afresh and control) or baseline, begun_afresh=is_afresh)
        for each, is_afresh in zip(tries, afresh, strict=True)
    ]
    return Tried(rows=tuple(rows), outcomes=tuple(each.outcome for each in tries), control=control)


def _candidates(rules: Rules, device: Device) -> tuple[str, ...]:
    """Return what is worth trying on top of the recorded settings."""
    unrounded = WITHOUT_ROUNDING if rules.rounds else ()
    return (*CANDIDATES[:1], *unrounded, *CANDIDATES[1:], *(WITH_FRACTION if device.fraction is not None else ()))


class _Try(NamedTuple):
    """A setting, the requests that were replayed under it, and how they went."""

    name: str
    conf: str
    requests: Requests
    outcome: Replay


def _row(tried: _Try, reference: Replay, *, begun_afresh: bool) -> FixTried:
    outcome, notes = tried.outcome, tried.requests.caveats
    if begun_afresh and tried.name != AS_RECORDED:
        notes = (
            *notes,
            f"with older blocks repacked, the recorded settings reserve {format_size(reference.peak_reserved_bytes)}",
        )
    return FixTried(
        name=tried.name,
        conf=tried.conf,
        survives=outcome.survives,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        margin_bytes=outcome.margin_bytes,
        retries=outcome.retries,
        failed_event=outcome.failed_event,
        saved_bytes=reference.peak_reserved_bytes - outcome.peak_reserved_bytes,
        begun_afresh=begun_afresh,
        note="; ".join(notes),
    )
