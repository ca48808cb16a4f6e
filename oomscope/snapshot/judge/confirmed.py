"""Merge the outcomes of whole runs under other settings into a verdict: only a run to the end is a cure.

A replay ends where the recording does, at the failure; a run goes on, and under another setting may fail later. So the
row of a run takes the place of the replay's row of the same setting, and the cures are named anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from oomscope.snapshot.judge.headline import headline_of
from oomscope.snapshot.verdict_types import FixTried, Verdict

TIGHT_SHARE: Final = 0.02
"""A cure that leaves less than this share of the card is tight (1.6 GiB of 80 GiB): drivers refuse before their last
byte is taken, and libraries, processes and data change by some hundred MiB from one day to the next."""


def is_tight(margin_bytes: int, card_bytes: int) -> bool:
    """Return whether so little is left of a card with ``card_bytes`` in all that the next run may fail."""
    return margin_bytes < TIGHT_SHARE * card_bytes


def in_order_of_preference(cures: Sequence[FixTried]) -> list[FixTried]:
    """Return the rows that survive: roomy ones in the order in which they were tried, then the tight, roomier first.

    Margins of tight ones that lie between the same powers of two count as equal, so that a few MiB more do not make
    another setting than expandable segments the preferred one.
    """
    survivors = [row for row in cures if row.survives]
    roomy = [row for row in survivors if not row.is_tight]
    tight = sorted((row for row in survivors if row.is_tight), key=lambda row: -row.margin_bytes.bit_length())
    return [*roomy, *tight]


def confirmed(
    verdict: Verdict, runs: Sequence[FixTried], *, untried: Sequence[str] = (), demand_after: int | None = None
) -> Verdict:
    """Return a verdict of fragmentation as the runs show it.

    ``runs`` is one row a setting, in the order of preference among equally roomy ones; ``untried`` there was no time to
    run. ``demand_after`` is the largest live requested bytes of the run without a limit, where that is known.
    """
    cures = in_order_of_preference(runs)
    judged = replace(
        verdict,
        cured_by=tuple(row.name for row in cures),
        confirmed=True,
        uncured=not cures,
        tags=tuple(tag for tag in verdict.tags if tag != "undecided"),
        tried=_merged(verdict.tried, runs),
        untried=tuple(untried),
    )
    headline = headline_of(judged, requested_bytes=judged.requested_bytes or 0, demand_after=demand_after)
    return replace(judged, headline=headline)


def _merged(replayed: Sequence[FixTried], runs: Sequence[FixTried]) -> tuple[FixTried, ...]:
    """Return the rows of the runs after the first, the recorded settings; then the replays of settings not run."""
    of_replay = {row.name: row for row in replayed}
    ran = tuple(_beside_replay(row, of_replay.get(row.name)) for row in runs)
    names = {row.name for row in runs}
    return (*replayed[:1], *ran, *(row for row in replayed[1:] if row.name not in names))


def _beside_replay(run: FixTried, replayed: FixTried | None) -> FixTried:
    """Return the row of a run, with a note where the replay of the same setting came out otherwise."""
    if replayed is None or replayed.survives == run.survives:
        return run
    note = "its replay passes" if replayed.survives else "its replay fails"
    return replace(run, note="; ".join(part for part in (run.note, note) if part))
