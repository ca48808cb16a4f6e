"""How many probes it takes to find every step of bytes among many commits, and what splitting cannot see.

Lines are made at random: steps of all sizes up to 512 MiB, others that are taken back within 40 commits, and commits
that cannot be tested. What is found is compared with a walk over the whole line. Both ends are counted; "of the
bound" is the largest share of ``2 * k * log2(n) + 2`` that answers needed, k being the steps found.

    python benchmarks/bisect_steps.py [COMMITS] [CASES]
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from oomscope.bisect.search.steps import ByteStep, StepSearch, Threshold
from oomscope.units import Bytes, MiB
from tests.unit.bisect.search.runs import run

LARGEST = 512 * MiB
OVERHEAD = (0, 0, 40 * MiB)
REVERTED_WITHIN = 40


@dataclass
class Line:
    """Bytes along a line, None where it cannot be tested; counts what it is asked."""

    values: Sequence[Bytes | None]
    asked: int = 0
    met: int = 0

    def answer(self, position: int) -> Bytes | None:
        """Answer for one commit."""
        self.asked += 1
        self.met += self.values[position] is None
        return self.values[position]

    @property
    def steps(self) -> set[ByteStep]:
        """Every change between neighbours that can be tested."""
        known = [(place, value) for place, value in enumerate(self.values) if value is not None]
        return {ByteStep(after=a, at=b, delta=new - old) for (a, old), (b, new) in pairwise(known) if new != old}


@dataclass(frozen=True)
class Kind:
    """How lines are made, and how many looks the search has."""

    steps: int
    reverts: int
    untestable: float
    looks: int = 0

    def line(self, rng: random.Random, commits: int) -> Line:
        """Return a line of ``commits``."""
        deltas: dict[int, Bytes] = {}
        for place in rng.sample(range(1, commits + 1), self.steps + self.reverts):
            live, overhead = rng.randint(-LARGEST, LARGEST), rng.choice(OVERHEAD)
            deltas[place] = Bytes(requested_bytes=live, reserved_bytes=live + overhead)
        for place in rng.sample(sorted(deltas), self.reverts):
            later = min(commits, place + rng.randint(1, REVERTED_WITHIN))
            deltas[later] = deltas.get(later, Bytes()) - deltas[place]
        values = accumulate((deltas.get(place, Bytes()) for place in range(1, commits + 1)), initial=Bytes())
        hidden = set(rng.sample(range(1, commits), int(self.untestable * commits)))
        return Line([None if place in hidden else value for place, value in enumerate(values)])


KINDS = (
    Kind(1, 0, 0),
    Kind(5, 0, 0),
    Kind(5, 3, 0),
    Kind(20, 5, 0),
    Kind(1, 0, 0.15),
    Kind(5, 0, 0.15),
    Kind(5, 3, 0.15),
    Kind(5, 3, 0.15, looks=50),
    Kind(5, 3, 0.15, looks=200),
    Kind(20, 5, 0.15),
)


def measured(kind: Kind, commits: int, cases: int) -> str:
    """Return one line of the table."""
    probes, shares = list[int](), list[float]()
    right = found = there = 0
    for case in range(cases):
        line = kind.line(random.Random(case), commits)  # noqa: S311 - lines that repeat, no secrets
        first, last = line.values[0] or Bytes(), line.values[-1] or Bytes()
        rows = set(run(StepSearch.over(commits, first, last, Threshold()).looking(kind.looks), line.answer).steps)
        right += rows <= line.steps
        found += len(rows)
        there += len(line.steps)
        probes.append(line.asked + 2)
        shares.append((line.asked + 2 - line.met) / (2 * len(rows) * math.log2(commits) + 2))
    share = "" if kind.looks else f"{100 * max(shares):.0f} %"
    made = f"{kind.steps:>5}{kind.reverts:>9}{kind.untestable:>12.0%}{kind.looks:>7}"
    used = f"{sum(probes) / cases:.0f} ({max(probes)})"
    return f"{made}{f'{right} of {cases}':>14}{f'{found} of {there}':>15}{used:>12}{share:>14}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="?", type=int, default=1000)
    parser.add_argument("cases", nargs="?", type=int, default=100)
    given = parser.parse_args()
    print(f"{given.commits} commits, {given.cases} cases; probes: mean (most)")
    print("steps  reverts  untestable  looks  all rows right  steps found    probes  of the bound")
    for kind in KINDS:
        print(measured(kind, given.commits, given.cases))


if __name__ == "__main__":
    main()
