"""What changed between two tables of live bytes: rows that sum to the difference of the totals, whatever it is.

Every row of both tables is in the answer, also where nothing changed, so that either side sums to its own total. A
line that only moved is one row (:mod:`oomscope.snapshot.matching`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from oomscope.snapshot.alignment import Use
from oomscope.snapshot.matching import Lines, Pair, Place, Text, no_text, pair_lines
from oomscope.snapshot.sites import Site, SiteBytes

Presence: TypeAlias = Literal["both", "new", "gone"]
"""On which sides a line is."""


class Held(NamedTuple):
    """Live requested bytes of one side, and in how many blocks."""

    bytes: int = 0
    blocks: int = 0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row: what both sides hold."""

    before_bytes: int
    after_bytes: int
    before_count: int
    """Blocks."""
    after_count: int

    @property
    def delta_bytes(self) -> int:
        """Growth; negative where it shrank."""
        return self.after_bytes - self.before_bytes

    @property
    def delta_count(self) -> int:
        """Blocks that came; negative where they went."""
        return self.after_count - self.before_count

    @property
    def differs(self) -> bool:
        """Whether bytes or blocks differ."""
        return self.delta_bytes != 0 or self.delta_count != 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "delta_bytes": self.delta_bytes, "delta_count": self.delta_count}


@dataclass(frozen=True, kw_only=True)
class NamedChange(Change):
    """A row of a table by category, module or size."""

    name: str


@dataclass(frozen=True, kw_only=True)
class LineChange(Change):
    """What one line of code holds of one category."""

    site: Site
    """The line as the second side knows it; as the first one does, where it is gone. Its module is named where one
    alone is known."""
    was: Site | None
    """The line as the first side knows it, where file, line or function are others."""
    category: str
    presence: Presence

    @property
    def moved(self) -> bool:
        """Whether the line has another number, function or file name; where the program lies does not count."""
        return self.was is not None and _address(self.was) != _address(self.site)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**super().to_json(), "moved": self.moved}


Row = TypeVar("Row", bound=Change)


def line_changes(
    before: Sequence[SiteBytes], after: Sequence[SiteBytes], before_text: Text = no_text, after_text: Text = no_text
) -> tuple[LineChange, ...]:
    """Return a row for each line and category of either side, the largest change first.

    Args:
        before: live bytes by line, module and category; modules of one line become one row.
        after: those of the other side.
        before_text: the first side's source, where it is at hand.
        after_text: the second side's.
    """
    old, new = _Table.of(before), _Table.of(after)
    pairs = pair_lines(old.lines, new.lines, before_text, after_text)
    return largest_first(row for pair in pairs for row in _line_rows(old, new, pair))


def named_changes(before: Mapping[str, Held], after: Mapping[str, Held]) -> tuple[NamedChange, ...]:
    """Return a row for each name of either side, the largest change first."""
    names = dict.fromkeys((*before, *after))
    return largest_first(
        NamedChange(name=name, **_numbers(before.get(name, Held()), after.get(name, Held()))) for name in names
    )


def largest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return ``rows``, the largest change first, then the largest row."""
    return tuple(sorted(rows, key=_order))


def _order(row: Change) -> tuple[int, int, int, str]:
    name = row.name if isinstance(row, NamedChange) else ""
    if isinstance(row, LineChange):
        name = f"{row.site} {row.category}"
    return -abs(row.delta_bytes), -row.delta_bytes, -max(row.before_bytes, row.after_bytes), name


class _Table(NamedTuple):
    """One side: what each line holds, by category, and the modules that ran it."""

    lines: Lines
    held: Mapping[tuple[Place, str], Held]
    modules: Mapping[Place, set[str]]

    @classmethod
    def of(cls, rows: Iterable[SiteBytes]) -> _Table:
        held: dict[tuple[Place, str], Held] = defaultdict(Held)
        modules: dict[Place, set[str]] = defaultdict(set)
        for row in rows:
            place = Place(row.site.file, row.site.function, row.site.line)
            known = held[place, row.category]
            held[place, row.category] = Held(known.bytes + row.bytes, known.blocks + row.count)
            modules[place].add(row.site.module)
        uses: dict[Place, list[Use]] = defaultdict(list)
        for (place, category), (size, count) in held.items():
            uses[place].append(Use(category, size, count))
        return cls({place: tuple(sorted(found)) for place, found in uses.items()}, held, modules)

    def categories(self, place: Place | None) -> list[str]:
        return [use.category for use in self.lines[place]] if place else []

    def held_by(self, place: Place | None, category: str) -> Held:
        return self.held.get((place, category), Held()) if place else Held()


def _line_rows(before: _Table, after: _Table, pair: Pair) -> Iterator[LineChange]:
    """Yield the rows of one line, one for each category that it holds on either side."""
    old, new = pair
    known = {name for table, place in ((before, old), (after, new)) if place for name in table.modules[place] if name}
    module = known.pop() if len(known) == 1 else ""
    was, now = _site(old, module), _site(new, module)
    site = now or was
    if site is None:
        return
    for category in dict.fromkeys((*before.categories(old), *after.categories(new))):
        yield LineChange(
            site=site,
            was=was if now and old != new else None,
            category=category,
            presence="gone" if now is None else "new" if was is None else "both",
            **_numbers(before.held_by(old, category), after.held_by(new, category)),
        )


def _site(place: Place | None, module: str) -> Site | None:
    return Site(file=place.file, line=place.line, function=place.function, module=module) if place else None


def _numbers(before: Held, after: Held) -> dict[str, int]:
    return {
        "before_bytes": before.bytes,
        "after_bytes": after.bytes,
        "before_count": before.blocks,
        "after_count": after.blocks,
    }


def _address(site: Site) -> tuple[str, int, str]:
    return site.file.rpartition("/")[2], site.line, site.function
