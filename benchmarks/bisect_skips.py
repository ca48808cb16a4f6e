"""How many probes a bisection takes among commits that cannot be tested: oomscope's search against ``git bisect skip``.

git is run for real, on one line of commits, and told good, bad or skip as the search is. Both ends are given and not
counted. "nearest" is the search without its sense of distance: an untestable middle is replaced by its neighbour.

    python benchmarks/bisect_skips.py [COMMITS] [CASES]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oomscope.bisect.search.line import Answer, Search
from tests.unit.bisect.search.runs import found_by

ISOLATED = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
LEFT = "only 'skip'ped commits left"
FOUND = "is the first bad commit"


@dataclass
class Case:
    """A line of commits 0 to ``last`` that turns bad at ``culprit``; counts what it is asked."""

    last: int
    culprit: int
    untestable: frozenset[int]
    probes: int = 0

    def answer(self, position: int) -> Answer:
        """Answer for one commit."""
        self.probes += 1
        if position in self.untestable:
            return Answer.UNTESTABLE
        return Answer.BAD if position >= self.culprit else Answer.GOOD


class History:
    """A git repository with one line of commits."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")
        stream = "".join(
            f"commit refs/heads/main\ncommitter A <a@b> {1_700_000_000 + place} +0000\ndata 1\nx\n"
            for place in range(last + 1)
        )
        self.git("fast-import", "--quiet", stdin=stream)
        self.hashes = self.git("rev-list", "--reverse", "main").split()
        self.places = {name: place for place, name in enumerate(self.hashes)}

    def git(self, *arguments: str, stdin: str = "") -> str:
        """Run git and return what it prints; git bisect skip exits with 2 where only skipped commits are left."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            env={**os.environ, **ISOLATED},
            input=stdin,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode not in {0, 2}:
            raise RuntimeError(done.stderr)
        return done.stdout

    def probes(self, case: Case) -> int:
        """Return how many commits ``git bisect`` asks about."""
        words = {Answer.GOOD: "good", Answer.BAD: "bad", Answer.UNTESTABLE: "skip"}
        said = self.git("bisect", "start", "--no-checkout", self.hashes[-1], self.hashes[0])
        while LEFT not in said and FOUND not in said:
            asked = self.git("rev-parse", "BISECT_HEAD").strip()
            said = self.git("bisect", words[case.answer(self.places[asked])], asked)
        self.git("bisect", "reset", "HEAD")
        return case.probes


def nearest(case: Case) -> int:
    """Return the probes of a search that takes the testable commit nearest to the middle."""
    search = Search.over(case.last)
    while search.open:
        position = search.open[(len(search.open) + 1) // 2 - 1]
        search = search.with_answer(position, case.answer(position))
    return case.probes


def ours(case: Case) -> int:
    """Return the probes of oomscope's search."""
    found_by(Search.over(case.last), case.answer)
    return case.probes


def scattered(share: float) -> Callable[[random.Random, int], set[int]]:
    """Each commit is untestable with the same chance."""
    return lambda rng, last: {place for place in range(1, last) if rng.random() < share}


def stretches(count: int, length: int) -> Callable[[random.Random, int], set[int]]:
    """So many broken stretches, each so many commits long: what a build that stayed broken for a week looks like."""

    def pattern(rng: random.Random, last: int) -> set[int]:
        starts = [rng.randrange(1, last) for _ in range(count)]
        return {place for start in starts for place in range(start, min(last, start + length))}

    return pattern


PATTERNS = {
    "none": scattered(0),
    "10 % scattered": scattered(0.1),
    "30 % scattered": scattered(0.3),
    "4 stretches of 5": stretches(4, 5),
    "1 stretch of 20": stretches(1, 20),
    "1 stretch of 50": stretches(1, 50),
    "5 stretches of 20": stretches(5, 20),
}


def main() -> None:
    """Print one row a pattern."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", type=int, nargs="?", default=200)
    parser.add_argument("cases", type=int, nargs="?", default=20)
    given = parser.parse_args()
    last, cases = given.commits, given.cases
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), last)
        methods = {"git bisect skip": history.probes, "nearest": nearest, "oomscope": ours}
        print(f"{last} commits, {cases} random cases each: mean (most) probes besides the two ends\n")
        print(f"{'untestable':<20}" + "".join(f"{name:>18}" for name in methods))
        for name, pattern in PATTERNS.items():
            rng = random.Random(name)  # noqa: S311 - patterns that repeat, no secrets
            counts: dict[str, list[int]] = {method: [] for method in methods}
            for _ in range(cases):
                culprit, untestable = rng.randint(1, last), frozenset(pattern(rng, last))
                for method, probes in methods.items():
                    counts[method].append(probes(Case(last, culprit, untestable)))
            cells = [f"{sum(row) / cases:.1f} ({max(row)})" for row in counts.values()]
            print(f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
