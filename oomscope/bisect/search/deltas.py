"""A minimal set of changes at fault, of many: pure, one question at a time.

The changes are put in a row. The shortest bad beginning of the row ends in a change that is needed; with that change
made once and for all, the next needed one is looked for before it, and so on until those found are bad by themselves.
Each costs one bisection, so k needed changes of n take about k * log2(n) probes (compare Junker, QUICKXPLAIN, AAAI
2004, and Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 2002).

A change may also hide what others do, as one that saves memory does. So what was found is asked about without each of
its parts at last: k - 1 more probes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import combinations
from math import isqrt

from oomscope.bisect.search.line import Answer, Search

Changes = frozenset[int]
IsValid = Callable[[Changes], bool]

SHORT = 16
"""Units of a lump that are tried one by one; a longer one whose parts cannot be tested stays as it is."""
EXTRA = 2
"""Prerequisites of one change that are looked for by trying all: the rules know no key that needs more."""


def minimal_set(units: list[Changes], is_valid: IsValid) -> Generator[Changes, Answer, list[Changes]]:
    """Ask about sets of changes to make and return the units that are bad together, and no longer when any is left out.

    Args:
        units: changes that are made together, in an order in which every beginning of the row makes sense if
            possible. No change at all is known to be good, and all of them together are known to be bad.
        is_valid: whether a set of changes can be tested at all; sets that cannot are never asked about.

    Units that no testable set tells apart are returned as one.
    """
    lumps: list[list[Changes]] = []
    bad = len(units)
    while bad > 0:
        made = _union(lumps)
        if lumps and is_valid(made) and (yield made) is Answer.BAD:
            break
        search = Search.over(bad)
        for position in range(1, bad):
            if not is_valid(_union([units[:position]]) | made):
                search = search.with_answer(position, Answer.UNTESTABLE)
        while (wanted := search.wanted) is not None:
            changes = _union([units[:wanted]]) | made
            search = search.with_answer(wanted, (yield changes))
        lumps.insert(0, units[search.good : search.bad])
        bad = search.good
    while True:
        for lump in lumps:
            yield from _thin_out(lump, lumps, is_valid)
        needless = yield from _needless(lumps, is_valid)
        if needless is None:
            return [_union([lump]) for lump in lumps]
        lumps.remove(needless)


def next_question(units: list[Changes], is_valid: IsValid, answers: Sequence[Answer]) -> Changes | None:
    """Return what :func:`minimal_set` asks once it has been given ``answers``; None where it is done."""
    questions = minimal_set(units, is_valid)
    try:
        wanted = next(questions)
        for answer in answers:
            wanted = questions.send(answer)
    except StopIteration:
        return None
    return wanted


def _thin_out(lump: list[Changes], lumps: list[list[Changes]], is_valid: IsValid) -> Generator[Changes, Answer, None]:
    """Take out of ``lump`` the units that untestable sets alone kept in it: all is bad without them.

    Of a long lump whole parts are tried, down to ``SHORT`` units each.
    """
    size = len(lump) // 2
    while size >= SHORT:
        for part in [lump[begin : begin + size] for begin in range(0, len(lump), size)]:
            without = _union(lumps) - _union([part])
            if len(part) < len(lump) and is_valid(without) and (yield without) is Answer.BAD:
                lump[:] = [unit for unit in lump if unit not in part]
        size //= 2
    if len(lump) > 2 * SHORT:
        return
    for unit in list(lump) if len(lump) > 1 else []:
        without = _union(lumps) - unit
        if len(lump) > 1 and is_valid(without):
            answer = yield without
            if answer is Answer.BAD:
                lump.remove(unit)


def _needless(lumps: list[list[Changes]], is_valid: IsValid) -> Generator[Changes, Answer, list[Changes] | None]:
    """Return a lump without which the others are bad; None where all are needed."""
    for lump in lumps if len(lumps) > 1 else []:
        without = _union(lumps) - _union([lump])
        if is_valid(without) and (yield without) is Answer.BAD:
            return lump
    return None


def thinned(changes: Changes, doubtful: Sequence[int], is_bad: Callable[[Changes], bool]) -> Changes:
    """Return ``changes``, which are bad, without those of ``doubtful`` without which they are bad too.

    Parts are tried first, so few that each of them may hold one that is needed, then each change of such a part.
    """
    size = max(1, isqrt(len(doubtful)))
    for part in [doubtful[begin : begin + size] for begin in range(0, len(doubtful), size)]:
        if is_bad(changes - frozenset(part)):
            changes -= frozenset(part)
        elif len(part) > 1:
            for change in part:
                if is_bad(changes - {change}):
                    changes -= {change}
    return changes


def units_of(count: int, is_valid: IsValid) -> list[Changes]:
    """Return the changes 0 to ``count`` - 1 in groups that are valid only together, prerequisites first.

    A change that is invalid alone needs others. Those that need each other, directly or by way of others, are one
    group; a group comes after the groups that it needs.

    Args:
        count: how many changes there are.
        is_valid: whether a set of changes is; all of them together are.
    """
    everything = frozenset(range(count))
    needs = [smallest_valid(frozenset({change}), everything, is_valid) for change in range(count)]
    return grouped(needs)


def grouped(needs: Sequence[Changes]) -> list[Changes]:
    """Return changes in groups, prerequisites first, where ``needs`` has what each change needs, by number."""
    reach = [_closure(change, needs) for change in range(len(needs))]
    units: list[Changes] = []
    for change in sorted(range(len(needs)), key=lambda change: (len(reach[change]), change)):
        group = frozenset(other for other in reach[change] if change in reach[other])
        if group not in units:
            units.append(group)
    return units


def smallest_valid(wanted: Changes, among: Changes, is_valid: IsValid) -> Changes:
    """Return a valid set of changes with ``wanted`` in it: a smallest one if ``EXTRA`` more changes will do.

    Args:
        wanted: the changes that it must hold.
        among: a valid set that holds them; what else is needed is taken from there.
        is_valid: whether a set of changes is.
    """
    row = sorted(among - wanted)
    for size in range(EXTRA + 1):
        for extra in combinations(row, size):
            if is_valid(wanted.union(extra)):
                return wanted.union(extra)
    # The same search that finds what together is bad finds what together is valid.
    questions = minimal_set([frozenset({change}) for change in row], lambda _: True)
    try:
        changes = next(questions)
        while True:
            changes = questions.send(Answer.BAD if is_valid(wanted | changes) else Answer.GOOD)
    except StopIteration as stop:
        needed: list[Changes] = stop.value
    return wanted.union(*needed)


def _closure(change: int, needs: Sequence[Changes]) -> Changes:
    reached, new = frozenset[int](), frozenset({change})
    while new:
        reached |= new
        new = frozenset[int]().union(*(needs[other] for other in new)) - reached
    return reached


def _union(lumps: list[list[Changes]]) -> Changes:
    return frozenset(change for lump in lumps for unit in lump for change in unit)
