"""Narrows the commit at fault to the hunks (or keys) at fault, and matches hunks with the lines whose bytes grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from oomscope.bisect.changes.change_set import ChangeSet, everything, names
from oomscope.bisect.changes.config_keys import ConfigEnd, ConfigKeys
from oomscope.bisect.changes.delta_search import NONE, DeltaSearch, MinimalSet
from oomscope.bisect.changes.hunks import Hunks
from oomscope.bisect.changes.yaml_leaves import WithConfigOf
from oomscope.bisect.results.growth import SiteGrowth
from oomscope.bisect.results.result import CommitCulprit, ProbeRecord, Role
from oomscope.bisect.results.sections import HunkChange, Narrowed
from oomscope.bisect.run.experiment import OutOfTimeError
from oomscope.bisect.run.prober import Prober
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.patches import Hunk
from oomscope.bisect.vcs.repository import Commit, Repository
from oomscope.errors import GitError
from oomscope.probe.result import ProbeResult
from oomscope.units import Bytes

if TYPE_CHECKING:
    from oomscope.config.schema import Config

FEW = 8
"""Hunks of a commit up to which they are tried at once, not by file first."""
_DEADLINE = "the deadline passed before the commit was narrowed"


@dataclass(frozen=True, kw_only=True)
class TurningPoint:
    """Where a line turns from good to bad: two commits, and what is known of each."""

    before: Commit
    after: Commit
    records: tuple[ProbeRecord, ProbeRecord]
    results: tuple[ProbeResult, ProbeResult]


def narrow(
    culprit: CommitCulprit,
    turn: TurningPoint,
    repository: Repository,
    subject: Subject,
    prober: Prober,
    *,
    noise: Noise | None = None,
) -> CommitCulprit:
    """Return ``culprit`` with what of it is at fault; as it is, with a note, where that cannot be found out."""
    try:
        before, after = subject.config(turn.before), subject.config(turn.after)
        if before is not None and after is not None:
            keys = ConfigKeys(_end(turn.before, before), _end(turn.after, after))
            return _to_keys(culprit, keys, _search(keys, turn, prober, noise))
        held = subject.path if isinstance(subject, WithConfigOf) else None
        hunks = Hunks(repository, subject, turn.before, turn.after, held)
        search = _search(hunks, turn, prober, noise)
        search.called, search.learn = hunks.called, hunks.learn
        return _to_hunks(culprit, hunks, search)
    except GitError as error:
        prober.note(f"the commit is not narrowed: {error.message}")
    except OutOfTimeError:
        prober.note(_DEADLINE)
    return culprit


def _end(commit: Commit, config: Config) -> ConfigEnd:
    return ConfigEnd(name=commit.short, config=config, file=commit.short)


def _search(change_set: ChangeSet, turn: TurningPoint, prober: Prober, noise: Noise | None) -> DeltaSearch:
    """Return a search that knows both ends."""
    inside: Role = "inside the commit"
    search = DeltaSearch(change_set, prober, noise, role=inside, role_alone=inside)
    for changes, record, result in zip((NONE, everything(change_set)), turn.records, turn.results, strict=True):
        search.records[changes], search.results[changes] = record, result
    return search


def _to_keys(culprit: CommitCulprit, keys: ConfigKeys, search: DeltaSearch) -> CommitCulprit:
    found = search.minimal(keys.units)
    search.weighing.remark()
    deltas = {key: delta for unit, delta in _single(found) for key in names(keys, unit)}
    changes = tuple(replace(change, delta=deltas.get(change.key)) for change in culprit.keys)
    return replace(culprit, keys=changes, narrowed=_narrowed(search, found, keys=names(keys, found.changes)))


def _to_hunks(culprit: CommitCulprit, hunks: Hunks, search: DeltaSearch) -> CommitCulprit:
    """Find the files at fault first where there are many hunks, then the hunks in them.

    Hunks that are there because another needs them by a name may be too many: each is tried without at last.
    """
    among = everything(hunks)
    if len(among) > FEW:
        among = frozenset().union(*search.smallest(hunks.files))
    units = search.smallest(lambda: [unit for unit in hunks.units() if unit <= among])
    fault = NONE.union(*units)
    # Users come last: what only they need is tried after them.
    doubtful = [change for unit in reversed(units) for change in sorted(unit & hunks.needed_by_name(), reverse=True)]
    left = search.thinned(fault, doubtful, hunks.parses)
    hunks.forget(fault - left)
    found = search.with_bytes([unit & left for unit in units if unit & left])
    search.weighing.remark()
    return replace(culprit, narrowed=_narrowed(search, found, hunks=_rows(hunks.hunks, found, culprit.sites)))


def _narrowed(
    search: DeltaSearch, found: MinimalSet, *, keys: tuple[str, ...] = (), hunks: tuple[HunkChange, ...] = ()
) -> Narrowed:
    whole = everything(search.change_set)
    return Narrowed(
        candidates=len(whole),
        lumped=sum(len(unit) for unit in found.units if len(unit) > 1) if hunks else 0,
        keys=keys,
        hunks=hunks,
        delta=found.delta,
        interaction=found.delta - sum((delta for _, delta in _single(found) if delta is not None), start=Bytes()),
        rest=search.bytes(whole) - search.bytes(found.changes),
    )


def _is_touched(hunk: Hunk, row: SiteGrowth) -> bool:
    """Whether ``hunk`` wrote the line of ``row``, or took it away where it is gone."""
    if row.site is None or row.site.file != hunk.path:
        return False
    if hunk.is_whole:
        return True
    return row.site.line in (hunk.added if row.after_bytes else hunk.removed)


def _rows(pieces: Sequence[Hunk], found: MinimalSet, sites: Sequence[SiteGrowth]) -> tuple[HunkChange, ...]:
    """Return the guilty hunks, then the others that touch lines whose bytes differ."""
    deltas = {change: delta for unit, delta in _single(found) for change in unit}
    rows = [
        HunkChange(
            number=number + 1,
            name=hunk.name,
            path=hunk.path,
            section=hunk.section,
            is_guilty=number in found.changes,
            delta=deltas.get(number),
            sites=tuple(row for row in sites if _is_touched(hunk, row)),
        )
        for number, hunk in enumerate(pieces)
    ]
    return tuple(sorted((row for row in rows if row.is_guilty or row.sites), key=lambda row: not row.is_guilty))


def _single(found: MinimalSet) -> list[tuple[Changes, Bytes | None]]:
    """Return the units of one change each with the bytes of each."""
    return [(unit, delta) for unit, delta in zip(found.units, found.alone, strict=True) if len(unit) == 1]
