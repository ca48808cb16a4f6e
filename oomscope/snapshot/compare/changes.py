"""What changed between two tables of requested bytes: rows that sum to the difference of the totals, whatever it is.

Every row of both tables is in the answer, also where nothing changed, so that either side sums to its own total. A
line that only moved is one row (:mod:`oomscope.snapshot.compare.matching`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from oomscope.document import Document
from oomscope.snapshot.accounting.stack_tree import LiveStacks, StackBytes
from oomscope.snapshot.compare.matching import (
    Lines,
    Pair,
    Place,
    Text,
    Unchanged,
    Use,
    no_text,
    none_unchanged,
    pair_lines,
)
from oomscope.snapshot.sites import Frame, Site, SiteBytes

Presence: TypeAlias = Literal["both", "new", "gone"]
"""Sides on which a line is."""


class Held(NamedTuple):
    """Requested bytes of one side, and in how many blocks."""

    bytes: int = 0
    blocks: int = 0

    def plus(self, other: Held) -> Held:
        """Return both together."""
        return Held(self.bytes + other.bytes, self.blocks + other.blocks)


@dataclass(frozen=True, kw_only=True)
class Change(Document):
    """One row: what both sides hold."""

    also_written: ClassVar[tuple[str, ...]] = ("delta_bytes", "delta_count")

    before_bytes: int
    after_bytes: int
    before_count: int
    """Number of blocks on the first side."""
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

    @property
    def label(self) -> str:
        """Text by which rows that changed by the same are ordered."""
        return ""


@dataclass(frozen=True, kw_only=True)
class NamedChange(Change):
    """A row of a table by category, module or size."""

    name: str

    @property
    def label(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class LineChange(Change):
    """What one line of code holds of one category."""

    also_written: ClassVar[tuple[str, ...]] = (*Change.also_written, "moved")

    site: Site
    """The line on the second side; on the first one, where it is gone. Its module is named where only one is known."""
    was: Site | None
    """The line on the first side, where file, line or function differ."""
    category: str
    presence: Presence

    @property
    def label(self) -> str:
        """Return line and category."""
        return f"{self.site} {self.category}"

    @property
    def moved(self) -> bool:
        """Whether the line has another number, function or file name; where the program lies does not count."""
        return self.was is not None and _address(self.was) != _address(self.site)


Row = TypeVar("Row", bound=Change)
Uses: TypeAlias = Mapping[tuple[str, str], Held]
"""Blocks of a line by module and category."""


def line_changes(
    before: Sequence[SiteBytes],
    after: Sequence[SiteBytes],
    before_text: Text = no_text,
    after_text: Text = no_text,
    *,
    unchanged: Unchanged = none_unchanged,
    by_module: bool = False,
) -> tuple[LineChange, ...]:
    """Return a row for each line and category of either side, the largest change first.

    Texts and ``unchanged`` are those of :func:`pair_lines`. ``by_module`` gives each module of a line a row of its own,
    unless one side alone does not know them.
    """
    old, new = _uses(before), _uses(after)
    nothing: Uses = {}
    return largest_first(
        row
        for pair in pair_lines(_profiles(old), _profiles(new), before_text, after_text, unchanged)
        for row in _line_rows(
            pair, old[pair[0]] if pair[0] else nothing, new[pair[1]] if pair[1] else nothing, by_module=by_module
        )
    )


def named_changes(before: Mapping[str, Held], after: Mapping[str, Held]) -> tuple[NamedChange, ...]:
    """Return a row for each name of either side, the largest change first."""
    names = dict.fromkeys((*before, *after))
    return largest_first(
        NamedChange(name=name, **_numbers(before.get(name, Held()), after.get(name, Held()))) for name in names
    )


def largest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return ``rows``, the largest change first, then the largest row."""

    def order(row: Change) -> tuple[int, int, int, str]:
        return -abs(row.delta_bytes), -row.delta_bytes, -max(row.before_bytes, row.after_bytes), row.label

    return tuple(sorted(rows, key=order))


def _uses(rows: Iterable[SiteBytes]) -> dict[Place, Uses]:
    lines: dict[Place, dict[tuple[str, str], Held]] = defaultdict(dict)
    for row in rows:
        uses = lines[Place(row.site.file, row.site.function, row.site.line)]
        key = row.site.module, row.category
        uses[key] = uses.get(key, Held()).plus(Held(row.bytes, row.count))
    return dict(lines)


def _profiles(lines: Mapping[Place, Uses]) -> Lines:
    return {
        place: tuple(sorted(Use(category, *held) for (_, category), held in _over_modules(uses).items()))
        for place, uses in lines.items()
    }


def _over_modules(uses: Uses, module: str = "") -> Uses:
    """Add up what is held in different modules, under one name."""
    total: dict[tuple[str, str], Held] = {}
    for (_, category), held in uses.items():
        total[module, category] = total.get((module, category), Held()).plus(held)
    return total


def _line_rows(pair: Pair, before: Uses, after: Uses, *, by_module: bool) -> Iterator[LineChange]:
    """Yield the rows of one line, one for each category (and module) that it holds on either side."""
    old, new = pair
    modules = [{module for module, _ in uses} for uses in (before, after)]
    one_sided = bool(old and new) and ("" in modules[0]) != ("" in modules[1])
    if one_sided or not by_module:
        names = (modules[0] | modules[1]) - {""}
        only = names.pop() if len(names) == 1 else ""
        before, after = _over_modules(before, only), _over_modules(after, only)
    now_named = _renamed(before, after) if old and new else {}
    then_named = {now: then for then, now in now_named.items()}
    before = {(now_named.get(module, module), category): held for (module, category), held in before.items()}
    for module, category in dict.fromkeys((*before, *after)):
        was, now = _site(old, then_named.get(module, module)), _site(new, module)
        site = now or was
        if site is None:
            continue
        yield LineChange(
            site=site,
            was=was if now and old != new else None,
            category=category,
            presence="gone" if new is None else "new" if old is None else "both",
            **_numbers(before.get((module, category), Held()), after.get((module, category), Held())),
        )


def _renamed(before: Uses, after: Uses) -> dict[str, str]:
    """Return the new name of each module that was renamed: one that holds the same, or the only one left."""
    old, new = ({module: _of_module(uses, module) for module, _ in uses} for uses in (before, after))
    free = [module for module in new if module not in old]
    renamed: dict[str, str] = {}
    for module in [each for each in old if each not in new]:
        match = next((other for other in free if new[other] == old[module]), None)
        if match is not None:
            renamed[module] = match
            free.remove(match)
    left = [module for module in old if module not in new and module not in renamed]
    if len(left) == len(free) == 1:
        renamed[left[0]] = free[0]
    return renamed


def _of_module(uses: Uses, wanted: str) -> dict[str, Held]:
    return {category: held for (module, category), held in uses.items() if module == wanted}


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


def side_by_side(
    before: LiveStacks, after: LiveStacks, names: tuple[str, str], unchanged: Unchanged = none_unchanged
) -> LiveStacks:
    """Return the first moment of both under ``names``, as one tree: the difference of two flame graphs.

    Frames are the same line as in a table of lines, by what lies below them, so that a stack is the same though code
    above its lines was edited or lies in another folder. Lines are those of ``after`` where it has them.
    """
    pairs = pair_lines(_lines(before), _lines(after), unchanged=unchanged)
    twins = {old: new for old, new in pairs if old and new}
    numbers = {frame: number for number, frame in enumerate(after.frames)}
    known = [numbers.setdefault(_counterpart(frame, twins), len(numbers)) for frame in before.frames]
    totals: dict[tuple[tuple[int, ...], int, str, str], list[list[int]]] = {}
    for side, live in enumerate((before, after)):
        for row in live.rows:
            frames = row.frames if side else tuple(known[number] for number in row.frames)
            total = totals.setdefault((frames, row.line, row.module, row.category), [[0, 0], [0, 0]])
            total[0][side] += row.bytes[0]
            total[1][side] += row.blocks[0]
    found = (StackBytes(*key, *map(tuple, total)) for key, total in totals.items() if any(total[1]))
    return LiveStacks(
        moments=names,
        frames=tuple(numbers),
        own=tuple(sorted({*after.own, *(known[number] for number in before.own)})),
        rows=tuple(sorted(found, key=lambda row: (-max(row.bytes), row))),
    )


def _lines(live: LiveStacks) -> Lines:
    held: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    blocks: defaultdict[Place, Counter[str]] = defaultdict(Counter)
    for row in live.rows:
        for frame in set(live.stack(row)) if row.blocks[0] else ():
            if frame.filename:
                held[_place(frame)][row.category] += row.bytes[0]
                blocks[_place(frame)][row.category] += row.blocks[0]
    return {
        place: tuple(sorted(Use(category, size, blocks[place][category]) for category, size in sizes.items()))
        for place, sizes in held.items()
    }


def _place(frame: Frame) -> Place:
    return Place(frame.filename, frame.name, frame.line)


def _counterpart(frame: Frame, twins: dict[Place, Place]) -> Frame:
    twin = twins.get(_place(frame))
    return Frame(twin.file, twin.line, twin.function) if twin else frame
