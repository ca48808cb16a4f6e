"""How many probes a minimal set takes among many changes: oomscope's search against ddmin and one-by-one removal.

Of 48 changes 1 to 4 are bad only together. Both ends are given and not counted, nor is a set that was asked about
before. "ddmin" is the algorithm of Zeller and Hildebrandt (IEEE TSE 2002), which also gives a minimal set.

    python benchmarks/bisect_deltas.py [CHANGES] [CASES]
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from oomscope.bisect.search.deltas import Changes, minimal_set
from oomscope.bisect.search.line import Answer


@dataclass
class Case:
    """Bad is what holds all of ``guilty``; counts what it is asked."""

    guilty: Changes
    asked: set[Changes] = field(default_factory=set)

    def is_bad(self, changes: Changes) -> bool:
        """Answer for one set of changes."""
        self.asked.add(changes)
        return self.guilty <= changes


def prefix_bisection(count: int, case: Case) -> Changes:
    """Return what oomscope's search finds."""
    questions = minimal_set([frozenset({change}) for change in range(count)], lambda _: True)
    try:
        changes = next(questions)
        while True:
            changes = questions.send(Answer.BAD if case.is_bad(changes) else Answer.GOOD)
    except StopIteration as stop:
        return frozenset[int]().union(*stop.value)


def ddmin(count: int, case: Case) -> Changes:
    """Return a set of which no change can be left out, by chunks and their complements."""
    kept, parts = list(range(count)), 2
    while len(kept) > 1:
        size = len(kept) / parts
        chunks = [kept[round(size * part) : round(size * (part + 1))] for part in range(parts)]
        smaller = next((chunk for chunk in chunks if case.is_bad(frozenset(chunk))), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        without = [[change for change in kept if change not in chunk] for chunk in chunks] if parts > 2 else []
        smaller = next((rest for rest in without if case.is_bad(frozenset(rest))), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return frozenset(kept)


def one_by_one(count: int, case: Case) -> Changes:
    """Return what is left when every change that can be left out is."""
    kept = frozenset(range(count))
    for change in range(count):
        if case.is_bad(kept - {change}):
            kept -= {change}
    return kept


METHODS: dict[str, Callable[[int, Case], Changes]] = {
    "one by one": one_by_one,
    "ddmin": ddmin,
    "oomscope": prefix_bisection,
}


def main() -> None:
    """Print a table of mean and most probes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("changes", type=int, nargs="?", default=48)
    parser.add_argument("cases", type=int, nargs="?", default=200)
    given = parser.parse_args()
    print(f"| of {given.changes} changes, at fault together | {' | '.join(METHODS)} |")
    print(f"|---|{'---|' * len(METHODS)}")
    for guilty in (1, 2, 3, 4):
        cells = []
        for method in METHODS.values():
            probes = []
            for seed in range(given.cases):
                case = Case(frozenset(random.Random(seed).sample(range(given.changes), guilty)))  # noqa: S311
                found = method(given.changes, case)
                if found != case.guilty:
                    raise SystemExit(f"{method.__name__} found {found}, not {case.guilty}")
                probes.append(len(case.asked))
            cells.append(f"{sum(probes) / len(probes):.1f} ({max(probes)})")
        print(f"| {guilty} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
