"""Matches the lines of two programs, though files were moved and lines have other numbers.

Files are matched by the longest common end of their paths, since machines differ in where a program lies. Where the
text of both files is at hand, lines with the same text are the same line. All others are matched inside functions of
the same name, in their order: by what they hold, and by the distance to their neighbours. What is left is matched by
function and bytes anywhere in the program, then by functions that went to another file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import Category, Trace


class Use(NamedTuple):
    """What a line holds of one category."""

    category: str
    bytes: int
    blocks: int


class Place(NamedTuple):
    """A line of code."""

    file: str
    function: str
    line: int


Profile: TypeAlias = tuple[Use, ...]
"""Blocks of a line, one entry a category, sorted."""
Lines: TypeAlias = Mapping[Place, Profile]
Pair: TypeAlias = "tuple[Place | None, Place | None]"
Text: TypeAlias = Callable[[str], "Sequence[str] | None"]
"""Returns the lines of a file on one side; None where its text is not at hand."""
Unchanged: TypeAlias = Callable[[str, str], bool]
"""Returns whether a file of the first side and one of the second are the same, so that lines keep their numbers."""
SameLine: TypeAlias = Mapping[int, int]
"""Line number after the change by the number before, for lines that are known to be the same."""
Scores: TypeAlias = NDArray[np.int64]
"""Score of each pair of lines: a row for each line before, a column for each line after."""

SAME_BLOCKS: Final = 48
"""Score for blocks of the same categories. It outweighs equal bytes: a longer sequence doubles those of every line."""
SAME_USE: Final = 16
SAME_DISTANCE: Final = 8
"""Score for the same distance to the line above, and again for that to the line below."""
LIKE_SIZE: Final = 6
SAME_NUMBER: Final = 2
RELATED: Final = 1
NEVER: Final = -(10**6)
LASTING: Final = frozenset(
    category.label
    for category in (Category.PARAMETER, Category.GRADIENT, Category.MAIN_GRADIENT, Category.OPTIMIZER_STATE)
)
"""Categories that outlive a pass; a line seldom changes from these to the others."""

LONGEST_END: Final = 32
"""Most components of two paths that are compared."""
MOST_FILES: Final = 250_000
"""Pairs of files that are compared; beyond it files are the same only where their paths are."""
LARGEST_TABLE: Final = 4_000_000
"""Pairs of lines weighed in one function; beyond it lines are paired by number alone."""
LONGEST_TEXT: Final = 20_000
"""Lines of a file whose text is compared."""
FEWEST_LINES: Final = 3
"""Lines that two recordings must name in a file before it counts as unchanged; fewer may agree by chance."""


def no_text(file: str) -> None:
    """Return None: no source is at hand."""


def none_unchanged(before: str, after: str) -> bool:
    """Return False: no file is known to be unchanged."""
    return False


def unchanged(before: Trace, after: Trace) -> Unchanged:
    """Return which files two recordings suggest to be the same: their stacks name the same lines in it."""
    old, new = _lines_named(before), _lines_named(after)
    return lambda one, other: old[one] == new[other] and len(old[one]) >= FEWEST_LINES


def _lines_named(trace: Trace) -> defaultdict[str, set[tuple[int, str]]]:
    found: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    for frame in {frame for stack in trace.stacks for frame in stack}:
        found[frame.filename].add((frame.line, frame.name))
    return found


def pair_lines(
    before: Lines,
    after: Lines,
    before_text: Text = no_text,
    after_text: Text = no_text,
    unchanged: Unchanged = none_unchanged,
) -> list[Pair]:
    """Return every line of both sides once, with the line of the other side that it is, or None.

    The answer does not depend on the direction: the pairs from ``after`` to ``before`` are these, turned round.
    ``unchanged`` counts where a text is not at hand.
    """
    if sorted(after.items()) < sorted(before.items()):
        turned = _pairs(after, before, after_text, before_text, lambda new, old: unchanged(old, new))
        return [(old, new) for new, old in turned]
    return _pairs(before, after, before_text, after_text, unchanged)


def _pairs(old: Lines, new: Lines, old_text: Text, new_text: Text, unchanged: Unchanged) -> list[Pair]:
    pairs: list[Pair] = []
    old_files, new_files = _by_file(old), _by_file(new)
    for before, after in _files(old_files, new_files):
        same_line = same_lines(old_text(before), new_text(after))
        if same_line is None and unchanged(before, after):
            same_line = {place.line: place.line for place in (*old_files[before], *new_files[after])}
        pairs += _in_file(old_files[before], new_files[after], old, new, same_line or {})
    for find in (_unaltered, _moved_functions):
        old_left = {place: old[place] for place in old.keys() - {before for before, _ in pairs}}
        new_left = {place: new[place] for place in new.keys() - {after for _, after in pairs}}
        pairs += find(old_left, new_left)
    pairs += [(place, None) for place in sorted(old.keys() - {before for before, _ in pairs})]
    pairs += [(None, place) for place in sorted(new.keys() - {after for _, after in pairs})]
    return pairs


def _by_file(lines: Lines) -> dict[str, list[Place]]:
    files: dict[str, list[Place]] = defaultdict(list)
    for place in sorted(lines):
        files[place.file].append(place)
    return files


def _files(old: Mapping[str, Sequence[Place]], new: Mapping[str, Sequence[Place]]) -> list[tuple[str, str]]:
    """Return files that are the same: by their paths, the longest common end first.

    An end that is not the entire path counts only where the files have a function in common; of several files with
    the same end those with most functions in common are the same.
    """
    pairs = {file: file for file in old if file in new}
    likely = []
    olds, news = sorted(old.keys() - pairs.keys()), sorted(new.keys() - pairs.keys())
    for file in olds if len(olds) * len(news) <= MOST_FILES else ():
        for other in news:
            functions = [{place.function for place in side} for side in (old[file], new[other])]
            if (end := _common_end(file, other)) and (shared := len(functions[0] & functions[1])):
                likely.append((-end, -shared, file, other))
    for _, _, file, other in sorted(likely):
        if file not in pairs and other not in pairs.values():
            pairs[file] = other
    return list(pairs.items())


def _common_end(one: str, other: str) -> int:
    ends = (path.replace("\\", "/").split("/")[: -LONGEST_END - 1 : -1] for path in (one, other))
    same = [first == second for first, second in zip(*ends, strict=False)]
    return same.index(False) if False in same else len(same)


def same_lines(before: Sequence[str] | None, after: Sequence[str] | None) -> SameLine | None:
    """Return the line numbers of ``after`` by those of ``before``, by text without indentation; None without texts."""
    if before is None or after is None or max(len(before), len(after)) > LONGEST_TEXT:
        return None
    old, new = ([line.strip() for line in lines] for lines in (before, after))
    matcher = SequenceMatcher(None, old, new)  # lines that stand everywhere are no anchors: they would cost cubic time
    return {
        block.a + offset + 1: block.b + offset + 1
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _in_file(old: Sequence[Place], new: Sequence[Place], before: Lines, after: Lines, same: SameLine) -> list[Pair]:
    """Return the pairs of one file: known lines first, then the others in functions of the same name.

    A known line is never paired with another one, and has no counterpart where the other side allocates nothing in it.
    """
    there = {(place.function, place.line): place for place in new}
    functions = {place.function for place in old} & {place.function for place in new}
    pairs: list[Pair] = []
    for place in old:
        if place.line in same:
            found = there.get((place.function, same[place.line]))
            renamed = (each for each in new if each.line == same[place.line] and each.function not in functions)
            pairs.append((place, found or (next(renamed, None) if place.function not in functions else None)))
    paired, targets = {place for _, place in pairs}, set(same.values())
    pairs += ((None, place) for place in new if place.line in targets and place not in paired)
    for function in sorted(functions):
        left = [place for place in old if place.function == function and place.line not in same]
        right = [place for place in new if place.function == function and place.line not in targets]
        pairs += ((left[row], right[column]) for row, column in _aligned(left, right, before, after))
    return pairs


def _aligned(left: Sequence[Place], right: Sequence[Place], before: Lines, after: Lines) -> list[tuple[int, int]]:
    """Return the positions of the lines of one function that are the same: the path of most weight, in order."""
    if len(left) * len(right) > LARGEST_TABLE:
        position = {place.line: index for index, place in enumerate(right)}
        return [(row, position[place.line]) for row, place in enumerate(left) if place.line in position]
    score = _scores([before[place] for place in left], [after[place] for place in right], left, right)
    rows, columns = score.shape
    best = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    for row in range(rows):
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], best[row, :-1] + score[row]))
    pairs = []
    row, column = rows, columns
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _scores(old: Sequence[Profile], new: Sequence[Profile], left: Sequence[Place], right: Sequence[Place]) -> Scores:
    """Return the weight of each pair; one that cannot be has a negative one."""
    old_numbers, new_numbers = (np.array([place.line for place in side], dtype=np.int64) for side in (left, right))
    same_number = np.equal.outer(old_numbers, new_numbers)
    related = np.bitwise_and.outer(_lasting_bits(old), _lasting_bits(new)) != 0
    sizes = [np.array([sum(use.bytes for use in each) for each in side], dtype=float) for side in (old, new)]
    alike = np.minimum.outer(*sizes) / np.maximum(np.maximum.outer(*sizes), 1)
    score: Scores = np.where(related | same_number, RELATED, NEVER)
    score += SAME_USE * _equal(old, new) + SAME_BLOCKS * _equal(*(list(map(_blocks, side)) for side in (old, new)))
    score += (LIKE_SIZE * alike).astype(np.int64) + SAME_NUMBER * same_number
    same_distance = SAME_DISTANCE * np.equal.outer(np.diff(old_numbers), np.diff(new_numbers))
    score[1:, 1:] += same_distance
    score[:-1, :-1] += same_distance
    return score


def _blocks(profile: Profile) -> Hashable:
    return tuple((use.category, use.blocks) for use in profile)


def _equal(before: Sequence[Hashable], after: Sequence[Hashable]) -> NDArray[np.bool_]:
    number: dict[Hashable, int] = {}
    old, new = (np.array([number.setdefault(each, len(number)) for each in side]) for side in (before, after))
    equal: NDArray[np.bool_] = np.equal.outer(old, new)
    return equal


def _lasting_bits(profiles: Sequence[Profile]) -> NDArray[np.int64]:
    """Return bit flags of lines: 1 if some blocks outlive a pass, 2 if some do not; 3 for both or unknown."""
    labels = [{use.category for use in profile} for profile in profiles]
    unknown = Category.UNKNOWN.label
    bits = [3 if unknown in each else bool(each & LASTING) + 2 * bool(each - LASTING) for each in labels]
    return np.array(bits, dtype=np.int64)


def _unaltered(old: Lines, new: Lines) -> list[Pair]:
    """Return lines that went elsewhere as they were: in a function of the same name they hold the same."""
    waiting: dict[tuple[str, Profile], list[Place]] = defaultdict(list)
    for place in sorted(new, reverse=True):
        waiting[place.function, new[place]].append(place)
    found = ((place, waiting[place.function, old[place]]) for place in sorted(old))
    return [(place, places.pop()) for place, places in found if places]


def _moved_functions(old: Lines, new: Lines) -> list[Pair]:
    """Return lines of functions that went to another file and hold more or less than they did.

    Two lines at least must go the same way, each the only one whose function has its name and that holds as many
    blocks of each category.
    """
    before, after = _only_ones(old), _only_ones(new)
    pairs = [(place, after[key]) for key, place in before.items() if key in after]
    together = Counter((one.file, other.file, one.function) for one, other in pairs)
    return [(one, other) for one, other in pairs if together[one.file, other.file, one.function] > 1]


def _only_ones(lines: Lines) -> dict[Hashable, Place]:
    """Return by function and blocks the lines that no other is like."""
    keys = {
        place: (place.function, tuple((use.category, use.blocks) for use in lines[place])) for place in sorted(lines)
    }
    number = Counter(keys.values())
    return {key: place for place, key in keys.items() if number[key] == 1}
