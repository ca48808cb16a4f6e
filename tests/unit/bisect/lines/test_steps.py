"""Every step of a real history, through merges; the rows sum to the difference of the ends whatever was found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.result import BisectResult, CommitCulprit
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.steps import Threshold
from oomscope.bisect.targets.subjects import ConfigInRepo
from oomscope.probe.job import BundledTarget, ProbeJob, Progress
from oomscope.probe.result import ProbeResult
from oomscope.snapshot.verdict_types import LeakSuspect
from oomscope.units import Bytes
from tests.unit.bisect.probe_results import fits, verdict
from tests.unit.bisect.worlds import Listener, World, culprit, with_clock

STEPS = StepsWanted()
CONFIG = """\
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 128}
data: {seq_length: %s}
# %d
"""


def rows(result: BisectResult) -> list[tuple[str, int]]:
    return [(row.label, row.delta.requested_bytes) for row in result.steps]


def assert_sums(result: BisectResult) -> None:
    assert result.waterfall is not None
    total = sum((row.delta for row in result.steps), start=Bytes())
    assert total == result.waterfall.end - result.waterfall.start


def test_every_step_is_found_beside_the_culprit(world: World) -> None:
    sizes = [500] * 10 + [700] * 10 + [690] * 10 + [1010] * 10 + [1020]
    hashes = world.repo.import_line("size.txt", [f"{size} {place}" for place, size in enumerate(sizes)])

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        return fits(sizes[int((Path(job.target.repo) / "size.txt").read_text().split()[1])])  # type: ignore[union-attr]

    request = world.request(hashes[0], steps=STEPS, bad=Bad.parse("requested>1015"))
    result = bisect_commits(request, probe=probe, reporter=world.listener, environment={})
    assert rows(result) == [("change 10", 200), ("change 20", -10), ("change 30", 320), ("change 40", 10)]
    assert {row.commits for row in result.steps} == {1}
    assert culprit(result).commit == hashes[40]
    assert result.heaviest is not None
    assert result.heaviest.commit == hashes[30]
    assert_sums(result)
    assert len({record.commit for record in result.probes}) == len(result.probes), "nothing is asked twice"
    assert len(result.probes) <= 2 + 4 * 6
    assert world.listener.plan is not None
    assert "more than one commit (up to 6 more for each further one)" in world.listener.plan.more_if[0]


def test_steps_are_found_where_no_end_is_bad(world: World) -> None:
    good, *_ = world.sizes([500, 501, 700, 701])
    result = world.bisect(good, steps=STEPS)
    assert result.outcome == "no_culprit"
    assert rows(result) == [("commit 1", 1), ("commit 2", 199), ("commit 3", 1)]
    dominant = result.steps[1].dominant
    assert dominant is not None
    assert (dominant.delta_bytes, dominant.category) == (199, "activation")


def test_the_step_with_which_memory_begins_to_grow_is_reported(world: World) -> None:
    sizes = [500, 600, 900, 1000]
    hashes = world.repo.import_line("size.txt", list(map(str, sizes)))

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        size = int((Path(job.target.repo) / "size.txt").read_text())  # type: ignore[union-attr]
        leak = LeakSuspect(bytes_per_iteration=size, iterations=3, site=None) if size >= 900 else None
        return replace(fits(size), verdict=replace(verdict("headroom", size, 0), leak=leak))

    result = bisect_commits(world.request(hashes[0], steps=STEPS), probe=probe, reporter=world.listener, environment={})
    assert [row.leak_bytes for row in result.steps] == [0, 900, 0]


def test_steps_beside_a_run_that_was_cut_off_are_lower_bounds(world: World) -> None:
    good, *_ = world.sizes([500, 600, 1200])

    def probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        return replace(world.probe(job, progress), demand_bytes=None)

    result = bisect_commits(world.request(good, steps=STEPS), probe=probe, environment={})
    assert rows(result) == [("commit 1", 100), ("commit 2", 400)], "900 alive and the 100 that failed"
    (note,) = result.notes
    assert note.startswith("1 run failed before the peak was known: their bytes are lower bounds")


def test_a_step_and_its_revert_are_named_as_not_looked_into(world: World) -> None:
    for place, size in enumerate([500, 500, 500, 900, 900, 500, 500, 500]):
        world.repo.commit(f"change {place}", {"size.txt": str(size), "other": str(place)})
    hashes = world.repo.git("rev-list", "--reverse", "main").split()
    blind = world.bisect(hashes[0], steps=STEPS)
    assert blind.steps == ()
    assert blind.waterfall is not None
    (stretch,) = blind.waterfall.unseen
    assert (stretch.since, stretch.until) == (hashes[0], hashes[-1])
    assert stretch.commits == blind.considered
    world.listener = Listener()
    seen = world.bisect(hashes[0], steps=replace(STEPS, looks=2**31 - 1))
    assert rows(seen) == [("change 3", 400), ("change 5", -400)]
    assert seen.waterfall is not None
    assert seen.waterfall.unseen == ()


def test_what_lies_below_the_threshold_is_one_row(world: World) -> None:
    good, *_ = world.sizes([500, 501, 700, 702, 701])
    result = world.bisect(good, steps=StepsWanted(threshold=Threshold.of(5)))
    assert rows(result) == [
        ("commit 2", 199),
        ("smaller differences, of at most 5 B requested and 5 B overhead each", 2),
    ]
    assert result.steps[-1].commit is None
    assert_sums(result)


def test_a_deadline_leaves_a_row_of_several_commits(world: World) -> None:
    good, *_ = world.sizes([500 + place for place in range(8)] + [1200])
    result = with_clock(world, good, deadline_s=60 * 7 + 30, steps=STEPS)
    assert culprit(result).subject == "commit 8"
    assert result.waterfall is not None
    assert not result.waterfall.is_complete
    assert any(row.commits > 1 for row in result.steps)
    assert_sums(result)


def test_a_merge_whose_branch_cannot_be_measured_where_it_begins_stays_closed(world: World) -> None:
    world.repo.commit("root", {"size.txt": "import"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    world.repo.commit("side", {"size.txt": "700"})
    world.repo.git("checkout", "--quiet", "main")
    good = world.repo.commit("good", {"size.txt": "500"})
    world.repo.git("merge", "--quiet", "--no-ff", "--no-commit", "--strategy=ours", "side")
    merge = world.repo.commit("merge", {"size.txt": "700"})
    result = world.bisect(good, steps=STEPS)
    assert [(row.commit, row.delta.requested_bytes) for row in result.steps] == [(merge, 200)]
    assert f"a branch merged by {merge[:10]} was not searched: its start is untestable" in "".join(result.notes)


@dataclass
class Graph:
    """A history in which each commit adds bytes of its own to those of all that it contains."""

    parents: list[tuple[int, ...]] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    untestable: set[int] = field(default_factory=set)
    _contained: list[int] = field(default_factory=list)
    """A bit for each ancestor."""

    def add(self, *parents: int, own: int = 0) -> int:
        contained = reduce(int.__or__, (self._contained[parent] for parent in parents), 0)
        number = len(self.parents)
        self.parents.append(parents)
        self.own.append(own)
        self._contained.append(contained | 1 << number)
        self.live.append(1000 + sum(own for place, own in enumerate(self.own) if self._contained[number] >> place & 1))
        return number

    def between(self, since: int, until: int) -> list[int]:
        """The commits after ``since`` up to ``until`` along first parents, and all that merges among them brought."""
        before = self._contained[since]
        return [place for place in range(len(self.own)) if self._contained[until] & ~before & 1 << place]

    def files(self, number: int) -> dict[str, str]:
        length = "[1]" if number in self.untestable else str(self.live[number])
        return {"train.yaml": CONFIG % (length, number)}


def random_graph(case: int, size: int) -> Graph:
    """A main line with branches that are merged, a dozen steps and a hidden pair; 15 % untestable."""
    rng, graph = random.Random(case), Graph()
    steps = {place: rng.choice([16, 32, 64, -8]) for place in rng.sample(range(1, size - 1), 12)}
    line, edges = [graph.add()], {0}
    while len(graph.own) < size - 2:
        if rng.random() > 0.05 or len(graph.own) > size - 30:
            line.append(graph.add(line[-1], own=steps.get(len(graph.own), 0)))
            continue
        fork = tip = line[max(0, len(line) - rng.randint(1, 8))]
        for _ in range(rng.randint(1, 12)):
            tip = graph.add(tip, own=steps.get(len(graph.own), 0))
        line.append(graph.add(line[-1], own=0))
        line.append(graph.add(line[-1], tip, own=0))
        edges |= {fork, line[-1], line[-2]}
    line.append(graph.add(line[-1]))
    graph.untestable = set(rng.sample(sorted(set(range(len(graph.own) - 1)) - edges), size * 15 // 100))
    return graph


def graph_probe(job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    assert isinstance(job.target, BundledTarget)
    return fits(job.target.config["data"]["seq_length"])


def test_hundreds_of_commits_with_merges(world: World) -> None:
    graph = random_graph(0, 400)
    hashes = world.repo.import_graph([(graph.parents[place], graph.files(place)) for place in range(len(graph.own))])
    request = replace(world.request(hashes[0]), subject=ConfigInRepo(path="train.yaml"), steps=STEPS)
    request = replace(
        request, range=replace(request.range, bad=hashes[-1]), bad=Bad.parse(f"requested>{graph.live[-1] - 1}")
    )
    result = bisect_commits(request, probe=graph_probe, environment={})
    assert isinstance(result.culprit, CommitCulprit) or result.outcome == "suspects"
    assert_sums(result)
    assert_exact(graph, hashes, result)
    answered = len(result.probes) - len(result.untestable)
    assert answered <= 2 * len(result.steps) * math.log2(400) + 2


def assert_exact(graph: Graph, hashes: Sequence[str], result: BisectResult) -> None:
    """Each row of one commit is what that commit adds; what no row has lies where the report says it did not look."""
    number = {name: place for place, name in enumerate(hashes)}
    assert result.waterfall is not None
    accounted: set[int] = set()
    for row in result.steps:
        assert row.commit is not None
        assert row.since is not None
        if row.commits == 1:
            assert row.delta.requested_bytes == graph.own[number[row.commit]]
            accounted.add(number[row.commit])
        else:
            accounted |= set(graph.between(number[row.since], number[row.commit]))
    for stretch in result.waterfall.unseen:
        since, until = number[stretch.since], number[stretch.until]
        assert graph.live[since] == graph.live[until]
        accounted |= set(graph.between(since, until))
    assert {place for place, own in enumerate(graph.own) if own} <= accounted
