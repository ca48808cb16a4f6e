"""Every step of random histories of a thousand commits with merges, reverts and 15 % untestable ones, through git.

    python benchmarks/bisect_histories.py [CASES]

Each history is searched with ``--steps`` and with ``--steps --exhaustive``. What is found is held against what the
commits add: a row of one commit is what it adds, and whatever no row has lies in a stretch that the report names as not
looked into; with ``--exhaustive`` no such stretch is left, so that a step is a row of its own or in a set that
untestable neighbours hide. Printed are the probes with an answer as a share of ``2 * k * log2(n) + 2``.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.targets.subjects import ConfigInRepo
from tests.unit.bisect.lines.test_steps import Graph, assert_exact, assert_sums, graph_probe, random_graph
from tests.unit.bisect.worlds import World

COMMITS = 1000


def main() -> None:
    """Search the histories and print a line for each."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    worst = 0.0
    for case in range(cases):
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, _search(World(Path(folder)), random_graph(case, COMMITS), case))
    print(f"{cases} of {cases} histories exact; at most {worst:.0%} of the bound on probes")


def _search(world: World, graph: Graph, case: int) -> float:
    """Search one history both ways and return the probes of the first as a share of the bound."""
    numbers = range(len(graph.own))
    hashes = world.repo.import_graph([(graph.parents[number], graph.files(number)) for number in numbers])

    def found(steps: StepsWanted) -> BisectResult:
        request = replace(world.request(hashes[0]), subject=ConfigInRepo(path="train.yaml"), steps=steps)
        bad = Bad.parse(f"requested>{graph.live[-1] - 1}")
        request = replace(request, range=replace(request.range, bad=hashes[-1]), bad=bad)
        result = bisect_commits(request, probe=graph_probe, environment={})
        assert_sums(result)
        assert_exact(graph, hashes, result)
        return result

    split, everywhere = found(StepsWanted()), found(replace(StepsWanted(), looks=COMMITS))
    if everywhere.waterfall is None or everywhere.waterfall.unseen:
        raise AssertionError(f"history {case}: --exhaustive left something unseen")
    answered = len(split.probes) - len(split.untestable)
    bound = 2 * len(split.steps) * math.log2(COMMITS) + 2
    print(f"history {case}: {len(split.steps)} steps in {answered} probes of {bound:.0f};", end=" ")
    print(f"{len(everywhere.steps)} with --exhaustive in {len(everywhere.probes)}", flush=True)
    return answered / bound


if __name__ == "__main__":
    main()
