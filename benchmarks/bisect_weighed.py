"""How often a search among changes names the right ones where probes are wrong, and what it takes.

Of 48 changes one, or two together, are at fault. "Believed" asks about each mixture once; "weighed" asks again until
each answer is as sure as 95 % for the whole demand. Both ends are asked about and counted.

    python benchmarks/bisect_weighed.py [CASES] [CHANGES]
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field

from oomscope.bisect.changes.delta_search import DeltaSearch
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import Silent
from oomscope.bisect.results.result import KeyChange
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.prober import Prober
from oomscope.bisect.run.runner import Here, heedless
from oomscope.bisect.search.deltas import Changes
from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.result import Peak, ProbeResult

RATES = (0.0, 0.02, 0.05, 0.1, 0.2)
METHODS = {"believed": Noise(repeats=1), "weighed": Noise()}


@dataclass
class Numbers:
    """A mixture whose changes are numbers, all of them valid with each other."""

    count: int
    good: str = "good"
    bad: str = "bad"
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = tuple(map(str, range(self.count)))

    def units(self) -> list[Changes]:
        """Each change by itself."""
        return [frozenset({change}) for change in range(self.count)]

    def is_valid(self, changes: Changes) -> bool:
        """Whether it can be probed: always."""
        return changes is not None

    def change(self, key: str, delta: object = None) -> KeyChange:
        """One change in words."""
        return KeyChange(key=key, good=delta, bad=delta)

    def experiment(self, changes: Changes) -> Experiment:
        """A job that names the changes."""
        return Experiment(job=ProbeJob(target=BundledTarget(config={"made": sorted(changes)})))

    def commands(self, changes: Changes) -> tuple[str, ...]:
        """No commands."""
        return (str(changes),)


@dataclass
class Flaky:
    """2 requested bytes where all of ``guilty`` are made, else 1; inverted with probability ``wrong``."""

    guilty: Changes
    wrong: float
    rng: random.Random

    def __call__(self, job: ProbeJob, _progress: object = None, /) -> ProbeResult:
        """Measure."""
        made = job.target.config["made"] if isinstance(job.target, BundledTarget) else ()
        is_bad = (self.guilty <= set(made)) != (self.rng.random() < self.wrong)
        size = 1 + is_bad
        peak = Peak(
            requested_bytes=size,
            allocated_bytes=size,
            active_bytes=size,
            reserved_bytes=size,
            iteration=0,
            phase="",
            microbatch=0,
            site=None,
            event=0,
        )
        return ProbeResult(backend="virtual", outcome="fits", peak=peak)


def searched(count: int, probe: Flaky, noise: Noise) -> tuple[Changes | None, int]:
    """Return what the search finds, None for no answer, and how many probes it took."""
    mixture = Numbers(count)
    prober = Prober(Here(run=heedless(probe)), Bad(name="live", threshold=1), Silent(), environment={})
    search = DeltaSearch(mixture, prober, noise)
    found = None if search.ends() is not None else search.minimal(mixture.units).changes
    return found, len(prober.records)


def main() -> None:
    """Print a table of right and wrong answers, and mean probes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=int, nargs="?", default=100)
    parser.add_argument("changes", type=int, nargs="?", default=48)
    given = parser.parse_args()
    print(f"| at fault | wrong probes | {' | '.join(METHODS)} |\n|---|---|{'---|' * len(METHODS)}")
    for guilty in (1, 2):
        for wrong in RATES:
            cells = []
            for noise in METHODS.values():
                right, other, probes = 0, 0, 0
                for seed in range(given.cases):
                    rng = random.Random(seed)  # noqa: S311
                    changes = frozenset(rng.sample(range(given.changes), guilty))
                    found, asked = searched(given.changes, Flaky(changes, wrong, rng), noise)
                    right += found == changes
                    other += found not in (changes, None)
                    probes += asked
                cells.append(
                    f"{100 * right / given.cases:.0f} / {100 * other / given.cases:.0f} %, {probes / given.cases:.1f}"
                )
            print(f"| {guilty} | {wrong:.0%} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
