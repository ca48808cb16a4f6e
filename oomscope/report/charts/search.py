"""Which changes each probe of a search over keys, variables or hunks made: a row for each, a column for each probe."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from oomscope.bisect.results.noise import Posterior, percent
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.report.bisect_sentences import short_hash, shortened
from oomscope.report.charts.bars import Bar, bars
from oomscope.report.sentences import count
from oomscope.report.text.bisect_tables import likeliest

COLUMNS: Final = 48
"""Probes that are shown; the others are in the table of probes."""
ROWS: Final = 60


class MatrixRow(NamedTuple):
    """Changes that every probe made together or not at all."""

    keys: tuple[str, ...]
    made: tuple[bool, ...]
    """Whether each probe made them."""
    is_guilty: bool

    @property
    def name(self) -> str:
        """The key; of several how many, and the first and last of them."""
        if len(self.keys) == 1:
            return self.keys[0]
        return f"{count(len(self.keys), 'change')} that moved together, {self.keys[0]} … {self.keys[-1]}"


class KeyMatrix(NamedTuple):
    """The table."""

    probes: Sequence[ProbeRecord]
    rows: Sequence[MatrixRow]
    more_probes: int
    more_rows: int


def key_matrix(records: Sequence[ProbeRecord], guilty: Collection[str]) -> KeyMatrix | None:
    """Return the table of the probes of keys; None where there are none.

    Args:
        records: the probes of a search.
        guilty: the keys at fault; each has a row of its own, and they come first.
    """
    probes = [record for record in records if record.keys is not None]
    shown = probes[:COLUMNS]
    names = dict.fromkeys(key for record in probes for key in record.keys or ())
    if not names:
        return None
    sets = [frozenset(record.keys or ()) for record in shown]
    groups: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name in names:
        made = tuple(name in each for each in sets)
        groups.setdefault((name if name in guilty else "", made), []).append(name)
    rows = [MatrixRow(tuple(keys), made, bool(alone)) for (alone, made), keys in groups.items()]
    rows.sort(key=lambda row: not row.is_guilty)
    return KeyMatrix(shown, rows[:ROWS], len(probes) - len(shown), len(rows[ROWS:]))


SHOWN: Final = 16
"""Candidates with a bar of their own."""
PARTS: Final = 10**6
"""A bar's scale is whole numbers."""
NAME_LENGTH: Final = 80


def posterior_chart(result: BisectResult, posterior: Posterior) -> Markup:
    """Return a bar for each of the likeliest candidates in the order of the line, for all others, and for none."""
    subjects = {place.commit: place.subject for line in result.lines for place in line.places}
    likely = {commit for commit, _ in likeliest(posterior, SHOWN)}
    rows = [
        (f"{short_hash(commit)} {shortened(subjects.get(commit, ''), NAME_LENGTH)}", chance)
        for commit, chance in posterior.rows
        if commit in likely
    ]
    if others := [chance for commit, chance in posterior.rows if commit not in likely]:
        rows.append((count(len(others), "other commit"), sum(others)))
    rows += [("none: the bad end is good", posterior.none), ("the good end is bad already", posterior.already)]
    return bars([_bar(name, chance, posterior) for name, chance in rows], title="Probability of each candidate")


def _bar(name: str, chance: float, posterior: Posterior) -> Bar:
    tone = "bad" if chance >= posterior.confidence else "accent"
    return Bar(label=name, value=round(PARTS * chance), text=percent(chance), tone=tone)
