"""Align the lines of one function before and after an edit: a longest common subsequence with weights.

A line is recognised by what it holds, by its distance to its neighbours (lines behind an edit move together) and by
its place in the order. Where both texts are at hand they decide, and the rest is only for lines that were rewritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oomscope.snapshot.trace import Category


class Use(NamedTuple):
    """What a line holds of one category."""

    category: str
    bytes: int
    blocks: int


Profile: TypeAlias = tuple[Use, ...]
"""What a line holds, one entry a category, sorted."""


class Line(NamedTuple):
    """A line of a function."""

    number: int
    profile: Profile


UNKNOWN: Final = Category.UNKNOWN.label
LASTING: Final = frozenset(
    category.label
    for category in (Category.PARAMETER, Category.GRADIENT, Category.MAIN_GRADIENT, Category.OPTIMIZER_STATE)
)
"""What outlives a pass; a line seldom changes from these to the others."""

Truth: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.int32]
"""How much speaks for each pair of lines: a row a line before, a column a line after."""

SAME_TEXT: Final = 1000
SAME_BLOCKS: Final = 48
"""Blocks of the same categories: this outweighs equal bytes, for a longer sequence doubles those of every line."""
SAME_USE: Final = 16
SAME_DISTANCE: Final = 8
"""To the line above, and again to the line below."""
LIKE_SIZE: Final = 6
SAME_NUMBER: Final = 2
STAYED: Final = 48
"""Where half of what either line holds stayed as it was under the same number, and the rest is another."""
RELATED: Final = 1
NEVER: Final = -(10**6)

LARGEST_TABLE: Final = 4_000_000
"""Pairs of lines weighed in one function; beyond it lines are paired by number alone."""
LONGEST_TEXT: Final = 20_000
"""Lines of a file whose text is compared."""


def align(
    before: Sequence[Line], after: Sequence[Line], same_line: Mapping[int, int] | None = None
) -> list[tuple[int, int]]:
    """Return the positions of the lines that are the same, in order.

    Args:
        before: lines of a function, ascending.
        after: those of the same function later.
        same_line: by line number before the number after, of lines whose text is the same (:func:`same_lines`); None
            where the texts are not at hand.
    """
    if len(before) * len(after) > LARGEST_TABLE:
        position = {line.number: index for index, line in enumerate(after)}
        return [(row, position[line.number]) for row, line in enumerate(before) if line.number in position]
    return _best_path(_scores(before, after, same_line))


def same_lines(before: Sequence[str] | None, after: Sequence[str] | None) -> Mapping[int, int] | None:
    """Return which line number of ``before`` is which of ``after``, by text without indentation; None without texts."""
    if before is None or after is None or max(len(before), len(after)) > LONGEST_TEXT:
        return None
    old, new = ([line.strip() for line in lines] for lines in (before, after))
    matcher = SequenceMatcher(None, old, new)  # lines that stand everywhere are no anchors: they would cost cubic time
    return {
        block.a + offset + 1: block.b + offset + 1
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _scores(before: Sequence[Line], after: Sequence[Line], same_line: Mapping[int, int] | None) -> Scores:
    """Return the weight of each pair; one that cannot be has a negative one."""
    old, new = ([line.profile for line in side] for side in (before, after))
    old_numbers, new_numbers = (np.array([line.number for line in side]) for side in (before, after))
    same_number: Truth = np.equal.outer(old_numbers, new_numbers)
    above, below = _same_distances(old_numbers, new_numbers)
    same_use = _equal(old, new, _use)
    score = _where(_related(old, new) | same_number, RELATED, NEVER)
    score += _where(same_use, SAME_USE) + _where(_equal(old, new, blocks), SAME_BLOCKS)
    score += _where(above, SAME_DISTANCE) + _where(below, SAME_DISTANCE) + _where(same_number, SAME_NUMBER)
    score += _like_size(old, new) + _where(same_number & ~same_use & _half_stayed(old, new), STAYED)
    return score if same_line is None else _heed_text(score, old_numbers, new_numbers, same_line)


def _use(profile: Profile) -> Hashable:
    return profile


def blocks(profile: Profile) -> Hashable:
    """Return how many blocks of each category a line holds."""
    return tuple((use.category, use.blocks) for use in profile)


def _where(condition: Truth, weight: int, otherwise: int = 0) -> Scores:
    return np.where(condition, np.int32(weight), np.int32(otherwise))


def _equal(before: Sequence[Profile], after: Sequence[Profile], key: Callable[[Profile], Hashable]) -> Truth:
    """Return for each pair whether ``key`` is the same."""
    number: dict[Hashable, int] = {}
    old, new = (np.array([number.setdefault(key(each), len(number)) for each in side]) for side in (before, after))
    equal: Truth = np.equal.outer(old, new)
    return equal


def _like_size(before: Sequence[Profile], after: Sequence[Profile]) -> Scores:
    old, new = (np.array([sum(use.bytes for use in each) for each in side], dtype=float) for side in (before, after))
    ratio: NDArray[np.float64] = np.minimum.outer(old, new) / np.maximum(np.maximum.outer(old, new), 1)
    return (LIKE_SIZE * ratio).astype(np.int32)


def _half_stayed(before: Sequence[Profile], after: Sequence[Profile]) -> Truth:
    """Return for each pair whether at least half of the bytes of both lines are in uses that both have."""
    common = np.zeros((len(before), len(after)), dtype=np.int64)
    old, new = _users(before), _users(after)
    for use in old.keys() & new.keys():
        common[np.ix_(old[use], new[use])] += use.bytes
    sizes = (np.array([sum(use.bytes for use in each) for each in side], dtype=np.int64) for side in (before, after))
    stayed: Truth = (common > 0) & (2 * common >= np.maximum.outer(*sizes))
    return stayed


def _users(profiles: Sequence[Profile]) -> dict[Use, list[int]]:
    """Return by use the positions of the lines that have it."""
    users: defaultdict[Use, list[int]] = defaultdict(list)
    for position, profile in enumerate(profiles):
        for use in profile:
            users[use].append(position)
    return users


def _related(before: Sequence[Profile], after: Sequence[Profile]) -> Truth:
    """Return for each pair whether both hold what outlives a pass, or both what does not; an unknown one may be any."""
    related: Truth = np.bitwise_and.outer(_kinds(before), _kinds(after)) != 0
    return related


def _kinds(profiles: Sequence[Profile]) -> Numbers:
    """Return a bit for each kind of block that a line holds; all of them where one is unknown."""
    bits = [
        {3 if use.category == UNKNOWN else 1 if use.category in LASTING else 2 for use in each} for each in profiles
    ]
    return np.array([3 if len(each) > 1 else sum(each) for each in bits], dtype=np.int64)


def _same_distances(before: Numbers, after: Numbers) -> tuple[Truth, Truth]:
    """Return for each pair whether both lines stand as far from the line above, and from the line below."""
    above = np.zeros((len(before), len(after)), dtype=bool)
    below = above.copy()
    same = np.equal.outer(np.diff(before), np.diff(after))
    above[1:, 1:] = same
    below[:-1, :-1] = same
    return above, below


def _heed_text(score: Scores, before: Numbers, after: Numbers, same_line: Mapping[int, int]) -> Scores:
    """Let lines with the same text be one; a line whose text is found elsewhere is no other."""
    target = np.array([same_line.get(number, 0) for number in before.tolist()])
    is_target = np.isin(after, list(same_line.values()))
    same = np.equal.outer(target, after)
    found = np.logical_or.outer(target > 0, is_target)
    return np.where(same, np.maximum(score, 0) + SAME_TEXT, np.where(found, NEVER, score)).astype(np.int32)


def _best_path(score: Scores) -> list[tuple[int, int]]:
    """Return the pairs, rising in both, with the largest sum of weights."""
    rows, columns = score.shape
    best = np.zeros((rows + 1, columns + 1), dtype=np.int64)
    for row in range(rows):
        through = best[row, :-1] + score[row]
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], through))
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
