"""What grew from one snapshot to another, at each side's own peak: by code line, category, module and size of block.

Every table holds all of both peaks, so it sums exactly to their difference. Blocks of which something is not known (no
stack, alive before the recording, no category) are rows like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from oomscope.errors import InputError
from oomscope.snapshot.compare.changes import LineChange, NamedChange, line_changes, named_changes
from oomscope.snapshot.compare.matching import Text, no_text, unmoved
from oomscope.snapshot.compare.overlay import Overlay, overlay
from oomscope.snapshot.compare.side import Facts, Side
from oomscope.snapshot.read.rank_files import Unread
from oomscope.snapshot.sites import SiteBytes
from oomscope.snapshot.trace import Snapshot

SCHEMA_VERSION: Final = 2


@dataclass(frozen=True, kw_only=True)
class PhasePeaks:
    """The peak of requested bytes in one phase on either side; None on a side that has no such phase."""

    name: str
    before_bytes: int | None
    after_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class DeviceDifference:
    """One device of the first snapshot against one of the second."""

    before: Facts
    after: Facts
    lines: tuple[LineChange, ...]
    """This table and the next three sum to the difference of the peaks."""
    categories: tuple[NamedChange, ...]
    modules: tuple[NamedChange, ...]
    """The module ``""`` holds what no module is known of."""
    sizes: tuple[NamedChange, ...]
    """By size of block, in the allocator's classes."""
    phases: tuple[PhasePeaks, ...]
    timeline: Overlay
    rank: int | None = None
    """Of folders with one file a rank: which rank."""

    @property
    def delta_bytes(self) -> int:
        """What the peak of requested bytes grew by."""
        return self.after.requested_bytes - self.before.requested_bytes

    @property
    def is_empty(self) -> bool:
        """Whether both peaks hold the same."""
        return not any(row.differs for row in self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "rank": self.rank,
            "delta_bytes": self.delta_bytes,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "lines": [row.to_json() for row in self.lines],
            "categories": [row.to_json() for row in self.categories],
            "modules": [row.to_json() for row in self.modules],
            "sizes": [row.to_json() for row in self.sizes],
            "phases": [asdict(row) for row in self.phases],
            "timeline": self.timeline.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two snapshots, device by device, or two folders, rank by rank; what grew most comes first."""

    before_file: str
    after_file: str
    devices: tuple[DeviceDifference, ...]
    phase: str = ""
    """The phase inside which the peaks are compared; empty: each side's own peak."""
    only_before: tuple[int, ...] = ()
    """Devices that the second snapshot lacks; of folders, ranks."""
    only_after: tuple[int, ...] = ()
    """Devices that the first snapshot lacks; of folders, ranks."""
    unread: tuple[Unread, ...] = ()
    """Files of folders that could not be read; their ranks are not compared."""

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope diff --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "before_file": self.before_file,
            "after_file": self.after_file,
            "phase": self.phase,
            "devices": [device.to_json() for device in self.devices],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "unread": [asdict(file) for file in self.unread],
        }


@dataclass(frozen=True)
class Named:
    """A snapshot to compare.

    Args:
        file: its name, for reports and messages.
        snapshot: anybody's, or that of a probe.
        text: the source of its program, where it is at hand.
    """

    file: str
    snapshot: Snapshot
    text: Text = no_text


def diff(before: Named, after: Named, *, device: int | None = None, phase: str = "") -> Difference:
    """Return what grew from ``before`` to ``after``.

    Devices are compared with those of the same index; where each side has but one, these two.

    Args:
        before: the first snapshot, A.
        after: the second, B.
        device: compare this one alone.
        phase: compare the peaks inside this phase, such as ``backward``; empty: each side's own peak.

    Raises:
        InputError: a side does not have the device or the phase, or they have no device in common.
    """
    old, new = _sides(before, device, phase), _sides(after, device, phase)
    pairs = _pairs(old, new, before.file, after.file)
    found = [_compare(old[one], new[other], before.text, after.text) for one, other in pairs]
    return Difference(
        before_file=before.file,
        after_file=after.file,
        devices=worst_first(found),
        phase=phase,
        only_before=tuple(sorted(old.keys() - {one for one, _ in pairs})),
        only_after=tuple(sorted(new.keys() - {other for _, other in pairs})),
    )


def paired_sides(before: Named, after: Named, device: int | None = None) -> list[tuple[Side, Side]]:
    """Return the devices of two snapshots that :func:`diff` compares with each other.

    Raises:
        InputError: a side does not have the device, or they have none in common.
    """
    old, new = _sides(before, device, ""), _sides(after, device, "")
    return [(old[one], new[other]) for one, other in _pairs(old, new, before.file, after.file)]


def _pairs(old: Mapping[int, Side], new: Mapping[int, Side], before: str, after: str) -> list[tuple[int, int]]:
    """Return which device of ``old`` is compared with which of ``new``."""
    if len(old) == len(new) == 1:
        return list(zip(old, new, strict=True))
    if pairs := [(index, index) for index in old if index in new]:
        return pairs
    raise InputError(
        f"no device in common: {_listed(old)} in {before}, {_listed(new)} in {after}",
        remedy="compare files that have one in common",
    )


def worst_first(devices: Iterable[DeviceDifference]) -> tuple[DeviceDifference, ...]:
    """Return ``devices``, the one whose peak grew most first; among equals the one with the largest peak."""
    return tuple(sorted(devices, key=lambda row: (-row.delta_bytes, -row.after.requested_bytes, row.after.device)))


def _sides(named: Named, device: int | None, phase: str) -> dict[int, Side]:
    """Return the devices that have something to compare, or the one that is wanted."""
    snapshot = named.snapshot
    each = (Side(snapshot, trace, phase) for trace in snapshot.traces)
    sides = {side.recorded.device: side for side in each if side.recorded or side.bare.segments}
    if device is not None:
        if device not in sides:
            raise InputError(
                f"it holds nothing of device {device}", where=named.file, remedy=f"it has {_listed(sides)}"
            )
        sides = {device: sides[device]}
    for index, side in sides.items():
        if phase and phase not in side.phase_peaks():
            known = ", ".join(side.phase_peaks()) or "no phase that is known"
            raise InputError(f"device {index} has no phase {phase}", where=named.file, remedy=f"it has {known}")
    return sides


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(f"device {index}" for index in devices) or "no device"


def _compare(before: Side, after: Side, before_text: Text, after_text: Text) -> DeviceDifference:
    old, new = before.phase_peaks(), after.phase_peaks()
    return DeviceDifference(
        before=before.facts(),
        after=after.facts(),
        lines=line_changes(
            before.sites,
            after.sites,
            before_text,
            after_text,
            unmoved=unmoved(before.recorded, after.recorded),
        ),
        categories=named_changes(before.by(_category), after.by(_category)),
        modules=named_changes(before.by(_module), after.by(_module)),
        sizes=named_changes(before.by_size(), after.by_size()),
        phases=tuple(
            PhasePeaks(name=name, before_bytes=old.get(name), after_bytes=new.get(name))
            for name in dict.fromkeys((*old, *new))
        ),
        timeline=overlay(before.timeline, after.timeline),
    )


def _category(row: SiteBytes) -> str:
    return row.category


def _module(row: SiteBytes) -> str:
    return row.site.module
