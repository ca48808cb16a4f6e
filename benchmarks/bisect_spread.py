"""Which steps of bytes are found where measurements differ from probe to probe, and at how many probes.

256 commits with three steps of one size each, measured with Gaussian noise of one standard deviation; false are the
rows that hold no step. Probes are counted with both ends.

    python benchmarks/bisect_spread.py [CASES]
"""

from __future__ import annotations

import argparse
import random

from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.repeated_steps import RepeatedStepSearch
from oomscope.bisect.search.steps import Threshold

COMMITS, STEPS, SIGMA = 256, 3, 1000
SIZES = (0, 2, 3, 5, 10, 100)
"""Of a step, in standard deviations of one measurement."""


def measured(size: int, cases: int) -> str:
    """Return one row of the table."""
    found = false = probes = 0
    for case in range(cases):
        rng = random.Random(case)  # noqa: S311 - lines that repeat, no secrets
        steps = set(rng.sample(range(1, COMMITS + 1), STEPS)) if size else set()
        search = RepeatedStepSearch.over(COMMITS, Threshold.of(0), 0.95, 20)
        while (position := search.wanted) is not None:
            live = sum(size * SIGMA for step in steps if step <= position) + round(rng.gauss(0, SIGMA))
            search = search.told(position, Bytes(requested_bytes=live, reserved_bytes=live))
            probes += 1
        found += sum(step.at in steps and step.at - step.after == 1 for step in search.steps)
        false += sum(steps.isdisjoint(range(step.after + 1, step.at + 1)) for step in search.steps)
    there = f"{found} of {STEPS * cases}" if size else ""
    return f"| {size or 'no step'} | {there} | {false} | {probes / cases:.0f} |"


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=int, default=100)
    given = parser.parse_args()
    print("| standard deviations | exactly found | false | probes |")
    print("|---" * 4 + "|")
    for size in SIZES:
        print(measured(size, given.cases), flush=True)


if __name__ == "__main__":
    main()
