"""What the arithmetic of a search for all steps costs beside its probes: processor seconds for an exhaustive search.

Nothing on the line changes, which leaves the most ranges: every commit is asked about, with spread many of them again.

    python benchmarks/bisect_exhaustive.py [COMMITS ...]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.repeated_steps import RepeatedStepSearch
from oomscope.bisect.search.steps import StepSearch, Threshold
from oomscope.units import GiB

SIGMA = 1e5
"""Standard deviation of a measurement, in bytes."""


def timed(search: StepSearch | RepeatedStepSearch, measure: Callable[[], Bytes]) -> str:
    """Return the cells of one search: its questions, and the seconds that they took."""
    questions, began = 0, time.process_time()
    while (wanted := search.wanted) is not None:
        search = search.told(wanted, measure())
        questions += 1
    return f"{questions} | {time.process_time() - began:.2f} s"


def main() -> None:
    """Print the table, in Markdown."""
    print("| commits | questions without spread | | with spread | |")
    print("|---|---|---|---|---|")
    rng = random.Random(2)  # noqa: S311 - cases that repeat, no secrets
    for commits in [int(word) for word in sys.argv[1:]] or [500, 1000, 2000, 4000]:
        plain = StepSearch.over(commits, Bytes(), Bytes(), Threshold.of(0)).looking(commits)
        noisy = RepeatedStepSearch.over(commits, Threshold.of(0), 0.95, 20).looking(commits)
        cells = timed(plain, Bytes), timed(noisy, lambda: Bytes(requested_bytes=GiB + round(rng.gauss(0, SIGMA))))
        print(f"| {commits} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
