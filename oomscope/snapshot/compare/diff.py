"""What grew from one snapshot to another, at each side's own peak: by code line, category, module and size of block.

Every table holds all of both peaks, so it sums exactly to their difference. Blocks with unknown properties (no stack,
alive before the recording, no category) are rows like any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from oomscope.document import Document
from oomscope.errors import InputError, SnapshotError, UsageError
from oomscope.snapshot.accounting.stack_tree import LiveStacks
from oomscope.snapshot.compare.changes import LineChange, NamedChange, line_changes, named_changes, side_by_side
from oomscope.snapshot.compare.matching import unchanged
from oomscope.snapshot.compare.side import Facts, Overlay, Side, overlay
from oomscope.snapshot.read.limits import Limits
from oomscope.snapshot.read.load import load_snapshot
from oomscope.snapshot.read.rank_files import Announce, LeftOut, Unread, rank_files
from oomscope.snapshot.trace import Snapshot

SCHEMA_VERSION: Final = 3


@dataclass(frozen=True, kw_only=True)
class PhasePeaks:
    """The peak of requested bytes in one phase on either side; None on a side that has no such phase."""

    name: str
    before_bytes: int | None
    after_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class DeviceDifference(Document):
    """One device of the first snapshot against one of the second."""

    also_written: ClassVar[tuple[str, ...]] = ("delta_bytes",)
    not_written: ClassVar[tuple[str, ...]] = ("stacks",)

    before: Facts
    after: Facts
    lines: tuple[LineChange, ...]
    """Changes by line. This table and the next three sum to the difference of the peaks."""
    categories: tuple[NamedChange, ...]
    modules: tuple[NamedChange, ...]
    """Changes by module; ``""`` holds the blocks of no known module."""
    sizes: tuple[NamedChange, ...]
    """Changes by size of block, in the allocator's classes."""
    phases: tuple[PhasePeaks, ...]
    timeline: Overlay
    stacks: LiveStacks
    """Both peaks by whole stack, under the names ``A`` and ``B``."""
    rank: int | None = None
    """Rank, for folders with one file a rank."""

    @property
    def delta_bytes(self) -> int:
        """Growth of the peak of requested bytes."""
        return self.after.peak.requested_bytes - self.before.peak.requested_bytes

    @property
    def is_empty(self) -> bool:
        """Whether both peaks hold the same."""
        return not any(row.differs for row in self.lines)


@dataclass(frozen=True, kw_only=True)
class Difference(Document):
    """Two snapshots, device by device, or two folders, rank by rank; what grew most comes first."""

    before_file: str
    after_file: str
    devices: tuple[DeviceDifference, ...]
    phase: str = ""
    """The phase inside which the peaks are compared; empty: each side's own peak."""
    only_before: tuple[int, ...] = ()
    """Devices, or ranks for folders, that the second side lacks."""
    only_after: tuple[int, ...] = ()
    """Devices, or ranks for folders, that the first side lacks."""
    unread: tuple[Unread, ...] = ()
    """Files of folders that could not be read; their ranks are not compared."""
    left_out: tuple[LeftOut, ...] = ()
    """Files of folders besides the one chosen for their rank, or whose names contain no rank."""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Named:
    """A snapshot to compare, with its name for reports and messages."""

    file: str
    snapshot: Snapshot


def diff(before: Named, after: Named, *, device: int | None = None, phase: str = "") -> Difference:
    """Return what grew from ``before`` to ``after``, on one ``device`` or on all, in one ``phase`` or at each side's
    own peak.

    Devices are compared with those of the same index; where each side has but one, these two.

    Raises:
        InputError: a side does not have the device or the phase, or they have no device in common.
    """
    old, new = _sides(before, device, phase), _sides(after, device, phase)
    pairs = [(index, index) for index in old if index in new]
    if len(old) == len(new) == 1:
        pairs = list(zip(old, new, strict=True))
    if not pairs:
        raise InputError(
            f"no device in common: {_listed(old)} in {before.file}, {_listed(new)} in {after.file}",
            remedy="compare files that have one in common",
        )
    return Difference(
        before_file=before.file,
        after_file=after.file,
        devices=worst_first(_compare(old[one], new[other]) for one, other in pairs),
        phase=phase,
        only_before=tuple(sorted(old.keys() - {one for one, _ in pairs})),
        only_after=tuple(sorted(new.keys() - {other for _, other in pairs})),
    )


def diff_paths(
    before: Path,
    after: Path,
    *,
    device: int | None = None,
    phase: str = "",
    limits: Limits | None = None,
    announce: Announce = lambda _stage, _done, _total: None,
) -> Difference:
    """Return what grew from one file to another, or from one folder of ranks to another, two ranks in memory at a time.

    Arguments are those of :func:`diff` and of :func:`~oomscope.snapshot.read.load.load_snapshot`.

    Raises:
        UsageError: one is a folder, the other a file.
        InputError: there is nothing that can be compared.
        SnapshotError: a file cannot be read or trusted; of folders, no rank can be compared for that.
    """
    if before.is_dir() != after.is_dir():
        folder, file = sorted((before, after), key=Path.is_dir, reverse=True)
        raise UsageError(f"{folder} is a folder and {file} is not", remedy="compare two files, or two folders")
    if not before.is_dir():
        return diff(*_loaded(before, after, limits, announce), device=device, phase=phase)
    (old_files, old_left_out), (new_files, new_left_out) = _by_rank(before), _by_rank(after)
    common = sorted(old_files.keys() & new_files.keys())
    if not common:
        raise InputError(f"no rank in common with {after}", where=str(before), remedy="name the files by rank alike")
    found: list[DeviceDifference] = []
    refusals: dict[Path, SnapshotError] = {}
    for done, rank in enumerate(common):
        announce("rank", done, len(common))
        sides = []
        for file in (old_files[rank], new_files[rank]):
            try:
                sides.append(Named(str(file), load_snapshot(file, limits=limits)))
            except SnapshotError as error:
                refusals[file] = error
        if len(sides) == 2:
            found += (replace(row, rank=rank) for row in diff(*sides, device=device, phase=phase).devices)
    if not found:
        raise next(iter(refusals.values()))
    return Difference(
        before_file=str(before),
        after_file=str(after),
        phase=phase,
        devices=worst_first(found),
        only_before=tuple(sorted(old_files.keys() - new_files.keys())),
        only_after=tuple(sorted(new_files.keys() - old_files.keys())),
        unread=tuple(Unread(file=str(file), reason=error.message) for file, error in refusals.items()),
        left_out=(*old_left_out, *new_left_out),
    )


def _by_rank(folder: Path) -> tuple[dict[int, Path], list[LeftOut]]:
    found: dict[int, Path] = {}
    left_out = []
    for file in rank_files(folder):
        if file.rank is None or file.rank in found:
            left_out.append(LeftOut(file=str(file.path), rank=file.rank))
        else:
            found[file.rank] = file.path
    if not found:
        remedy = "compare two files, or name the files by rank, such as snap-0.pickle"
        raise SnapshotError("the file names give no ranks", where=str(folder), remedy=remedy)
    return found, sorted(left_out, key=lambda each: each.file)


def _loaded(before: Path, after: Path, limits: Limits | None, announce: Announce) -> tuple[Named, Named]:
    announce("read A", 0, 0)
    old = Named(str(before), load_snapshot(before, limits=limits))
    announce("read B", 0, 0)
    new = Named(str(after), load_snapshot(after, limits=limits))
    announce("compare", 0, 0)
    return old, new


def worst_first(devices: Iterable[DeviceDifference]) -> tuple[DeviceDifference, ...]:
    """Return ``devices``, the one whose peak grew most first; among equals the one with the largest peak."""
    return tuple(sorted(devices, key=lambda row: (-row.delta_bytes, -row.after.peak.requested_bytes, row.after.device)))


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
            known = ", ".join(side.phase_peaks()) or "no known phase"
            raise InputError(f"device {index} has no phase {phase}", where=named.file, remedy=f"it has {known}")
    return sides


def _listed(devices: Iterable[int]) -> str:
    return ", ".join(f"device {index}" for index in devices) or "no device"


def _compare(before: Side, after: Side) -> DeviceDifference:
    old, new = before.phase_peaks(), after.phase_peaks()
    same_files = unchanged(before.recorded, after.recorded)
    return DeviceDifference(
        before=before.facts(),
        after=after.facts(),
        lines=line_changes(before.sites, after.sites, unchanged=same_files),
        categories=named_changes(*(side.by(lambda row: row.category) for side in (before, after))),
        modules=named_changes(*(side.by(lambda row: row.site.module) for side in (before, after))),
        sizes=named_changes(before.by_size(), after.by_size()),
        phases=tuple(
            PhasePeaks(name=name, before_bytes=old.get(name), after_bytes=new.get(name))
            for name in dict.fromkeys((*old, *new))
        ),
        timeline=overlay(before.timeline, after.timeline),
        stacks=side_by_side(before.stacks, after.stacks, ("A", "B"), same_files),
    )
