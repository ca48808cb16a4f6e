"""Two recordings of one program, allocation by allocation: what only one side has, and what that makes of the peak.

The moment of comparison is B's peak and the same place in A's program. What is alive there is told apart by pairs, so
the rows sum exactly to the difference of requested bytes: blocks of one side alone, blocks of another size, and blocks
that one side has freed by then and the other has not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from oomscope.snapshot.compare.diff import Named, paired_sides
from oomscope.snapshot.compare.paired_events import Indices, Pairs, paired
from oomscope.snapshot.lifetimes import BEFORE, Lifetimes
from oomscope.snapshot.sites import Site, site_of
from oomscope.snapshot.timeline import Timeline

SCHEMA_VERSION: Final = 2
Kind = Literal["only_before", "only_after", "resized", "freed_earlier", "freed_later", "older"]
"""``resized``: the same allocation asks for another size. ``freed_earlier``: B has freed by then what A holds yet.
``older``: blocks of which the recordings do not have the allocation."""


class Cause(NamedTuple):
    """What rows are gathered by."""

    kind: Kind
    phase: str
    site: Site | None
    before_bytes: int
    """Size of a block in A; 0 where A has none."""
    after_bytes: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """Allocations that differ in the same way at the same line."""

    kind: Kind
    phase: str
    site: Site | None
    before_bytes: int
    after_bytes: int
    count: int
    """In the whole recording; of blocks freed at another time those at the moment of comparison."""
    at_peak: int
    """Of them alive at the moment of comparison on either side."""
    delta_bytes: int
    """What they add to B's requested bytes at that moment."""


@dataclass(frozen=True, kw_only=True)
class AlignedMoment:
    """The same place in both programs: right after these events."""

    before_event: int
    after_event: int
    before_bytes: int
    """Requested bytes."""
    after_bytes: int


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One device of two recordings of the same program."""

    device: int
    same: int
    """Allocations that agree in size and place in the order."""
    resized: int
    only_before: int
    only_after: int
    only_before_bytes: int
    only_after_bytes: int
    peak: AlignedMoment
    before_peak_bytes: int
    """A's own peak, which may stand elsewhere."""
    first: Row | None
    """The first allocation that differs, by itself."""
    rows: tuple[Row, ...]
    """Their ``delta_bytes`` sum to the difference at the moment of comparison; those that weigh most come first."""

    @property
    def delta_bytes(self) -> int:
        """What B has more alive than A at the moment of comparison."""
        return self.peak.after_bytes - self.peak.before_bytes

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "delta_bytes": self.delta_bytes}


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Two recordings of the same program, device by device; what differs most comes first."""

    before_file: str
    after_file: str
    devices: tuple[Alignment, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``oomscope diff --align --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "before_file": self.before_file,
            "after_file": self.after_file,
            "devices": [device.to_json() for device in self.devices],
        }


def align(before: Named, after: Named, *, device: int | None = None) -> Aligned:
    """Return how ``after`` differs from ``before``, allocation by allocation, on each device or the one wanted.

    Raises:
        InputError: they have no such device in common, or are too different to be of the same program.
    """
    sides = paired_sides(before, after, device)
    devices = [align_events(old.timeline, new.timeline) for old, new in sides]
    devices.sort(key=lambda each: (-abs(each.delta_bytes), each.device))
    return Aligned(before_file=before.file, after_file=after.file, devices=tuple(devices))


def align_events(before: Timeline, after: Timeline) -> Alignment:
    """Return how ``after`` differs from ``before``, allocation by allocation.

    Raises:
        InputError: the two are too different to be of the same program.
    """
    pairs = paired(before.trace, after.trace)
    moment = _moment(before, after, pairs)
    causes, counts, at_peak = Counter[Cause](), Counter[Cause](), Counter[Cause]()
    for cause in _anywhere(before, after, pairs):
        counts[cause] += 1
    for cause in _alive(before, after, pairs, moment):
        causes[cause] += cause.after_bytes - cause.before_bytes
        at_peak[cause] += 1
    rows = [
        Row(
            **cause._asdict(),
            count=counts[cause] or at_peak[cause],
            at_peak=at_peak[cause],
            delta_bytes=causes[cause],
        )
        for cause in dict.fromkeys((*counts, *at_peak))
    ]
    rows.sort(key=lambda row: (-abs(row.delta_bytes), -row.count * max(row.before_bytes, row.after_bytes)))
    old, new = before.trace, after.trace
    resized = int((old.size[pairs.before] != new.size[pairs.after]).sum())
    return Alignment(
        device=new.device,
        same=len(pairs.before) - resized,
        resized=resized,
        only_before=len(pairs.only_before),
        only_after=len(pairs.only_after),
        only_before_bytes=int(old.size[pairs.only_before].sum()),
        only_after_bytes=int(new.size[pairs.only_after].sum()),
        peak=moment,
        before_peak_bytes=before.requested_bytes_at(before.peak_event()),
        first=_first(before, after, pairs),
        rows=tuple(rows),
    )


def _moment(before: Timeline, after: Timeline, pairs: Pairs) -> AlignedMoment:
    """Return B's peak and the last place before it that A has as well; before the first, as far into the recording."""
    event = after.peak_event()
    at = int(np.searchsorted(pairs.after, event, side="right")) - 1
    first = int(pairs.before[0]) if len(pairs.before) else len(before.trace)
    old = int(pairs.before[at]) if at >= 0 else min(event, first - 1)
    return AlignedMoment(
        before_event=old,
        after_event=event,
        before_bytes=before.requested_bytes_at(old),
        after_bytes=after.requested_bytes_at(event),
    )


def _anywhere(before: Timeline, after: Timeline, pairs: Pairs) -> Iterator[Cause]:
    """Yield the causes of all allocations that differ."""
    for event in pairs.only_before.tolist():
        yield _cause("only_before", before, event, int(before.trace.size[event]), 0)
    for event in pairs.only_after.tolist():
        yield _cause("only_after", after, event, 0, int(after.trace.size[event]))
    differs = np.flatnonzero(before.trace.size[pairs.before] != after.trace.size[pairs.after])
    for old, new in zip(pairs.before[differs].tolist(), pairs.after[differs].tolist(), strict=True):
        yield _cause("resized", after, new, int(before.trace.size[old]), int(after.trace.size[new]))


def _alive(before: Timeline, after: Timeline, pairs: Pairs, moment: AlignedMoment) -> Iterator[Cause]:
    """Yield the causes of what differs among the blocks that are alive at ``moment``, a block each."""
    old, new = _live(before, moment.before_event), _live(after, moment.after_event)
    counterpart = dict(zip(pairs.before.tolist(), pairs.after.tolist(), strict=True))
    seen = set()
    for event, size in old.blocks.items():
        partner = counterpart.get(event)
        if partner is None:
            yield _cause("only_before", before, event, size, 0)
        elif partner not in new.blocks:
            yield _cause("freed_earlier", before, event, size, 0)
        else:
            seen.add(partner)
            if new.blocks[partner] != size:
                yield _cause("resized", after, partner, size, new.blocks[partner])
    paired_after = set(pairs.after.tolist())
    for event, size in new.blocks.items():
        if event not in seen:
            yield _cause("freed_later" if event in paired_after else "only_after", after, event, 0, size)
    if old.older_bytes != new.older_bytes:
        yield Cause("older", "", None, old.older_bytes, new.older_bytes)


class _Live(NamedTuple):
    blocks: dict[int, int]
    """Size by alloc event."""
    older_bytes: int


def _live(timeline: Timeline, event: int) -> _Live:
    lifetimes: Lifetimes = timeline.lifetimes
    rows: Indices = lifetimes.requested_at(event)
    born, size = lifetimes.born[rows], lifetimes.size[rows]
    inside = born != BEFORE
    blocks = dict(zip(born[inside].tolist(), size[inside].tolist(), strict=True))
    return _Live(blocks, int(size[~inside].sum()))


def _cause(kind: Kind, timeline: Timeline, event: int, before_bytes: int, after_bytes: int) -> Cause:
    trace = timeline.trace
    site = site_of(trace.stacks[trace.stack_id[event]])
    return Cause(kind, trace.moments[trace.moment_id[event]].phase, site, before_bytes, after_bytes)


def _first(before: Timeline, after: Timeline, pairs: Pairs) -> Row | None:
    """Return the first difference in the order of B's program."""
    where: list[tuple[tuple[int, int], Cause]] = []
    if len(pairs.only_after):
        event = int(pairs.only_after[0])
        where.append(((event, 1), _cause("only_after", after, event, 0, int(after.trace.size[event]))))
    if len(pairs.only_before):
        event = int(pairs.only_before[0])
        at = int(np.searchsorted(pairs.before, event))
        stands = int(pairs.after[at]) if at < len(pairs.after) else len(after.trace)
        where.append(((stands, 0), _cause("only_before", before, event, int(before.trace.size[event]), 0)))
    differs = np.flatnonzero(before.trace.size[pairs.before] != after.trace.size[pairs.after])
    if len(differs):
        old, new = int(pairs.before[differs[0]]), int(pairs.after[differs[0]])
        cause = _cause("resized", after, new, int(before.trace.size[old]), int(after.trace.size[new]))
        where.append(((new, 2), cause))
    if not where:
        return None
    _, cause = min(where, key=lambda each: each[0])
    return Row(**cause._asdict(), count=1, at_peak=0, delta_bytes=0)
