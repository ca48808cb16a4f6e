"""Which line of one program is which line of another, though files were moved and lines have other numbers.

Files are matched by the longest common end of their paths (machines differ in where a program lies), functions by
name, and the lines of a function in their order (:mod:`oomscope.snapshot.compare.alignment`). What was renamed is
known by the blocks that it holds.

Tell from the frames of two recordings which lines of a file stand where they stood. All stacks speak, not only those of
what is live at the peaks. Where every line that one recording names in a file is named by the other too, in the same
function, the file may be the same; lines that the other names besides may also be those lines, moved there. A line is
known by its number where no such move fits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias, TypeVar

from oomscope.snapshot.compare.alignment import Line, Profile, align, blocks, same_lines
from oomscope.snapshot.trace import Trace


class Numbered(NamedTuple):
    """A line of a file, by its number."""

    line: int
    function: str


Numbers: TypeAlias = "set[Numbered]"
Unmoved: TypeAlias = Callable[[str, str], Numbers]
"""Says of a file of the first side and one of the second which lines are the same by their numbers."""
FEWEST: Final = 3
"""Lines that both sides must name; fewer may agree by chance."""
MOST_MOVES: Final = 65_536
"""Lines times further lines of a file that are tried; beyond it no line is known by its number."""


def nothing_unmoved(before: str, after: str) -> Numbers:
    """Say that no line of any file is known by its number."""
    return set()


def unmoved(before: Trace, after: Trace) -> Unmoved:
    """Return what tells of the files of two recordings; the answer is the same in either direction."""
    old, new = _lines(before), _lines(after)

    def those_of(one: str, other: str) -> Numbers:
        fewer, more = sorted((old.get(one, set()), new.get(other, set())), key=len)
        further = more - fewer
        if len(fewer) < FEWEST or not fewer <= more or len(fewer) * len(further) > MOST_MOVES:
            return set()
        return fewer - set(_movable(fewer, further))

    return those_of


def _movable(lines: Numbers, further: Numbers) -> Iterator[Numbered]:
    """Yield lines that, with none or some of their neighbours, may have gone to where the further lines are.

    Neighbours move together. The lowest of those that moved down, as the highest of those that moved up, now stands
    between lines that stayed: it is one of the further lines.
    """
    named, ascending = lines | further, sorted(lines)
    numbers = [line.line for line in ascending]
    for target in further:
        upward = range(bisect_left(numbers, target.line) - 1, -1, -1)
        downward = range(bisect_right(numbers, target.line), len(ascending))
        for order in (upward, downward):
            yield from _moved_to(target, ascending, order, named)


def _moved_to(target: Numbered, ascending: Sequence[Numbered], order: range, named: Numbers) -> Iterator[Numbered]:
    """Yield the lines that fit a move of the first one in ``order``, the nearest, to ``target``."""
    if not order or ascending[order[0]].function != target.function:
        return
    by = target.line - ascending[order[0]].line
    nearest_first = (ascending[index] for index in order)
    yield from takewhile(lambda line: line._replace(line=line.line + by) in named, nearest_first)


def _lines(trace: Trace) -> dict[str, Numbers]:
    """Return the lines that stacks name, by file."""
    found: defaultdict[str, Numbers] = defaultdict(set)
    for frame in {frame for stack in trace.stacks for frame in stack}:
        found[frame.filename].add(Numbered(frame.line, frame.name))
    return dict(found)


class Place(NamedTuple):
    """A line of code."""

    file: str
    function: str
    line: int


Lines: TypeAlias = Mapping[Place, Profile]
Pair: TypeAlias = "tuple[Place | None, Place | None]"
Text: TypeAlias = Callable[[str], "Sequence[str] | None"]
"""Gives the lines of a file as one side knows it; None where its text is not at hand."""

Name = TypeVar("Name", bound=Hashable)
Traits: TypeAlias = "Counter[Hashable]"

LONGEST_END: Final = 32
"""Components of two paths that are compared at most."""
CROWD: Final = 64
"""How many files or functions may share a trait before it says nothing about any of them."""


def no_text(file: str) -> None:
    """Say that no source is at hand."""


def pair_lines(
    before: Lines,
    after: Lines,
    before_text: Text = no_text,
    after_text: Text = no_text,
    unmoved: Unmoved = nothing_unmoved,
) -> list[Pair]:
    """Return every line of both sides once, with the line of the other side that it is, or None.

    The answer does not depend on the direction: the pairs from ``after`` to ``before`` are these, turned round.

    Args:
        before: what the lines of one program hold.
        after: what the lines of the other hold.
        before_text: the files of the first program, where they are at hand.
        after_text: those of the second.
        unmoved: tells which lines of a file are known by their numbers, where a text of it is not at hand.
    """
    if sorted(after.items()) < sorted(before.items()):
        turned = _pairs(_Side.of(after, after_text), _Side.of(before, before_text), lambda new, old: unmoved(old, new))
        return [(old, new) for new, old in turned]
    return _pairs(_Side.of(before, before_text), _Side.of(after, after_text), unmoved)


@dataclass(frozen=True)
class _Side:
    """One program: what its lines hold, and by file and function which lines there are, in order."""

    lines: Lines
    files: Mapping[str, Mapping[str, list[Place]]]
    text: Text

    @classmethod
    def of(cls, lines: Lines, text: Text) -> _Side:
        files: dict[str, dict[str, list[Place]]] = {}
        for place in sorted(lines):
            files.setdefault(place.file, {}).setdefault(place.function, []).append(place)
        return cls(lines, files, text)

    def without(self, known: Iterable[Place | None]) -> _Side:
        known = set(known)
        return _Side.of({place: profile for place, profile in self.lines.items() if place not in known}, self.text)

    def function_traits(self, file: str, function: str) -> Traits:
        """What a function is known by when its name has changed."""
        return Counter(self.lines[place] for place in self.files[file][function])

    def file_traits(self, file: str) -> Traits:
        """What a file is known by when its name has changed."""
        return Counter((place.function, self.lines[place]) for place in self._places(file))

    def traits(self, file: str) -> Traits:
        """What files of one name are told apart by: functions, and what their lines hold."""
        return self.file_traits(file) + Counter(self.files[file].keys())

    def _places(self, file: str) -> Iterable[Place]:
        return (place for places in self.files[file].values() for place in places)


def _pairs(old: _Side, new: _Side, unmoved: Unmoved) -> list[Pair]:
    pairs: list[Pair] = []
    for before, after in _files(old, new):
        same_line = same_lines(old.text(before), new.text(after))
        known = unmoved(before, after) if same_line is None else set()
        pairs += _by_number(old, before, new, after, known)
        for function, other in _functions(old, before, new, after):
            left, right = (
                [place for place in places if Numbered(place.line, place.function) not in known]
                for places in (old.files[before][function], new.files[after][other])
            )
            aligned = align(
                [Line(place.line, old.lines[place]) for place in left],
                [Line(place.line, new.lines[place]) for place in right],
                same_line,
            )
            pairs += [(left[row], right[column]) for row, column in aligned]
    for find in (_strays, _moved_functions):
        pairs += find(old.without(before for before, _ in pairs), new.without(after for _, after in pairs))
    pairs += [(place, None) for place in old.without(before for before, _ in pairs).lines]
    pairs += [(None, place) for place in new.without(after for _, after in pairs).lines]
    return pairs


def _by_number(old: _Side, before: str, new: _Side, after: str, known: Iterable[Numbered]) -> Iterator[Pair]:
    """Yield the lines that are known by their numbers; one that is on one side only has no counterpart anywhere."""
    for line, function in sorted(known):
        here, there = Place(before, function, line), Place(after, function, line)
        if here in old.lines or there in new.lines:
            yield here if here in old.lines else None, there if there in new.lines else None


def _files(old: _Side, new: _Side) -> list[tuple[str, str]]:
    """Return files that are the same: by their paths, the longest common end first; then those renamed.

    An end that is not the entire path counts only where the files have a function in common.
    """
    pairs = [(file, file) for file in old.files if file in new.files]
    before = {file: _components(file) for file in old.files if file not in new.files}
    after = {file: _components(file) for file in new.files if file not in old.files}
    for length in range(LONGEST_END, 0, -1):
        ends: dict[tuple[str, ...], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, files in enumerate((before, after)):
            for file, components in files.items():
                if len(components) >= length:
                    ends[components[-length:]][side].append(file)
        for olds, news in ends.values():
            found = _most_alike(
                {file: old.traits(file) for file in olds}, {file: new.traits(file) for file in news}, share=0.0
            )
            pairs += found
            for file, other in found:
                del before[file], after[other]
    renamed = _most_alike(
        {file: old.file_traits(file) for file in before}, {file: new.file_traits(file) for file in after}
    )
    return [*pairs, *renamed]


def _components(file: str) -> tuple[str, ...]:
    return tuple(file.replace("\\", "/").split("/")[-LONGEST_END:])


def _functions(old: _Side, before: str, new: _Side, after: str) -> list[tuple[str, str]]:
    """Return the functions of a file that are the same: by name; then those renamed."""
    olds, news = old.files[before], new.files[after]
    renamed = _most_alike(
        {name: old.function_traits(before, name) for name in olds if name not in news},
        {name: new.function_traits(after, name) for name in news if name not in olds},
    )
    return [*((name, name) for name in olds if name in news), *renamed]


def _most_alike(
    before: Mapping[Name, Traits], after: Mapping[Name, Traits], share: float = 0.5
) -> list[tuple[Name, Name]]:
    """Return pairs of names, those with most traits in common first, each name at most once.

    Args:
        before: the traits of each name of one side.
        after: those of the other side.
        share: a pair counts only where more than this share of the poorer one's traits is common.
    """
    named: dict[Hashable, tuple[list[Name], list[Name]]] = defaultdict(lambda: ([], []))
    for side, names in enumerate((before, after)):
        for name, traits in names.items():
            for trait in traits:
                named[trait][side].append(name)
    common: Counter[tuple[Name, Name]] = Counter()
    for trait, (olds, news) in named.items():
        if max(len(olds), len(news)) <= CROWD:
            common.update({(old, new): min(before[old][trait], after[new][trait]) for old in olds for new in news})
    pairs: dict[Name, Name] = {}
    taken: set[Name] = set()
    for (old, new), number in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        poorer = min(before[old].total(), after[new].total())
        if number > share * poorer and old not in pairs and new not in taken:
            pairs[old] = new
            taken.add(new)
    return list(pairs.items())


def _strays(old: _Side, new: _Side) -> list[Pair]:
    """Return lines that went elsewhere as they were: in a function of the same name they hold the same."""
    waiting: dict[tuple[str, Profile], list[Place]] = defaultdict(list)
    for place in sorted(new.lines, reverse=True):
        waiting[place.function, new.lines[place]].append(place)
    strays = ((place, waiting[place.function, old.lines[place]]) for place in sorted(old.lines))
    return [(place, found.pop()) for place, found in strays if found]


def _moved_functions(old: _Side, new: _Side) -> list[Pair]:
    """Return lines of functions that went to another file and hold more or less than they did.

    Two lines at least must go the same way, each the only one whose function has its name and that holds as many
    blocks of each category.
    """
    lines_before, lines_after = _only_ones(old), _only_ones(new)
    pairs = [(place, lines_after[key]) for key, place in lines_before.items() if key in lines_after]
    together = Counter((before.file, after.file, before.function) for before, after in pairs)
    return [pair for pair in pairs if together[pair[0].file, pair[1].file, pair[0].function] > 1]


def _only_ones(side: _Side) -> dict[Hashable, Place]:
    """Return by function and blocks the lines that no other is like."""
    keys = {place: (place.function, blocks(profile)) for place, profile in sorted(side.lines.items())}
    number = Counter(keys.values())
    return {key: place for place, key in keys.items() if number[key] == 1}
