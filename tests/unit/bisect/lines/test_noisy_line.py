"""A search over a real repository whose probes are wrong now and then finds the commit, and says how sure it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.repeats import Noise
from oomscope.bisect.targets.subjects import own_code_of
from oomscope.config.load import load_preset
from oomscope.probe.job import ProbeJob, ProgramTarget, Progress
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import error
from tests.unit.bisect.worlds import SETTINGS, Flaky, Listener, World, culprit, harness_code, with_clock

GOOD_SIZE, BAD_SIZE = 500, 1500
REAL = load_preset("gpt-tiny", ["probe.backend=cuda"]).config


def line(world: World, commits: int, at: int) -> list[str]:
    return world.sizes([(BAD_SIZE if place >= at else GOOD_SIZE) + place for place in range(commits + 1)])


def search(world: World, good: str, probe: Flaky, **options: object) -> BisectResult:
    options = {"noise": Noise(), **options}
    return bisect_commits(world.request(good, **options), probe=probe, environment={})


def test_the_right_commit_is_found_although_probes_are_wrong(world: World) -> None:
    hashes = line(world, 24, 13)
    found = wrong = 0
    for seed in range(2):
        probe = Flaky(0.1, seed)
        result = search(world, hashes[0], probe, use_cache=False)
        found += culprit(result).commit == hashes[13]
        wrong += probe.wrong
        assert result.confidence is not None
        assert result.confidence >= 0.95
        assert "% sure" in result.message
    assert wrong > 0
    assert found == 2


def test_answers_like_a_coins_leave_suspects(world: World) -> None:
    hashes = line(world, 6, 3)
    result = search(world, hashes[0], Flaky(0.5, 3), use_cache=False, noise=Noise(repeats=4))
    assert result.outcome == "suspects"
    assert "contradict" in result.message
    assert max(Counter(record.commit for record in result.probes).values()) <= 4


def test_on_the_virtual_card_one_answer_is_enough(world: World) -> None:
    hashes = line(world, 40, 23)
    plain = world.bisect(hashes[0], use_cache=False)
    default = search(world, hashes[0], Flaky(0.0), use_cache=False, noise=None)
    once = search(world, hashes[0], Flaky(0.0), use_cache=False, noise=Noise(repeats=1))
    assert [record.commit for record in plain.probes] == [record.commit for record in default.probes]
    assert [record.commit for record in plain.probes] == [record.commit for record in once.probes]
    assert default.confidence is None


@pytest.mark.parametrize(("noise", "is_weighed"), [(None, True), (Noise(repeats=1), False)])
def test_on_a_card_answers_are_weighed_unless_that_is_declined(
    world: World, noise: Noise | None, is_weighed: bool
) -> None:
    hashes = line(world, 20, 7)
    request = replace(world.request(hashes[0], noise=noise), subject=harness_code(world.harness, REAL))
    result = bisect_commits(request, probe=Flaky(0.0, backend="cuda"), environment={})
    assert culprit(result).commit == hashes[7]
    assert (result.confidence is not None) is is_weighed
    assert any(record.repeat for record in result.probes) is is_weighed


def program_search(world: World, good: str, probe: Flaky | Reading, **options: object) -> BisectResult:
    """Search as over a program that is started as it is."""
    subject = own_code_of(ProgramTarget(repo="", command="python train.py"), SETTINGS)
    options = {"use_cache": False, **options}
    request, world.listener = replace(world.request(good, **options), subject=subject), Listener()
    return bisect_commits(request, probe=probe, reporter=world.listener, environment={})


@dataclass
class Reading(Flaky):
    """A probe that has read unknown values, and has therefore compared two runs."""

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        return replace(super().__call__(job, progress), unknown_reads=1)


def test_a_program_is_probed_again_where_the_line_turns(world: World) -> None:
    hashes = line(world, 12, 7)
    result = program_search(world, hashes[0], Flaky(0.0))
    assert culprit(result).commit == hashes[7]
    assert world.listener.plan is not None
    assert world.listener.plan.more_if == (
        "the program reads no value of the card (the two probes that decide are repeated)",
    )
    assert sorted(record.commit for record in result.probes if record.repeat) == sorted(hashes[6:8])
    assert (result.confidence, result.notes) == (None, ())


@pytest.mark.parametrize(("probe", "options"), [(Reading(0.0), {}), (Flaky(0.0), {"noise": Noise(repeats=1)})])
def test_a_program_is_not_probed_again_where_that_shows_nothing_or_is_declined(
    world: World, probe: Flaky, options: dict[str, object]
) -> None:
    hashes = line(world, 12, 7)
    result = program_search(world, hashes[0], probe, **options)
    assert culprit(result).commit == hashes[7]
    assert not any(record.repeat for record in result.probes)


def test_a_program_that_differs_in_each_run_is_probed_until_an_answer_is_sure(world: World) -> None:
    hashes, found = line(world, 24, 13), 0
    for seed in range(4):
        result = program_search(world, hashes[0], Flaky(0.1, seed, spread=3))
        found += culprit(result).commit == hashes[13]
        assert result.confidence is not None
        assert result.confidence >= 0.95
        (note,) = result.notes
        sizes = re.search(r"was probed again and requested ([\d,.]+ \w+) instead of ([\d,.]+ \w+): the program", note)
        assert sizes is not None
        assert sizes[1] != sizes[2]
    assert found == 4


@dataclass
class Failing(Flaky):
    """A probe that fails when it is asked for the same a second time."""

    def __call__(self, job: ProbeJob, progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        found = super().__call__(job, progress)
        return found if Counter(self.ran).most_common(1)[0][1] == 1 else error("timeout")


def test_a_repeat_that_fails_changes_nothing(world: World) -> None:
    hashes = line(world, 12, 7)
    result = program_search(world, hashes[0], Failing(0.0))
    assert (culprit(result).commit, result.confidence, result.notes) == (hashes[7], None, ())
    assert culprit(result).delta.requested_bytes > 900
    assert "timeout" not in result.message


@pytest.mark.parametrize("sizes", [[500, "import"], [500, 500]])
def test_ends_that_measure_the_same_are_not_probed_again(world: World, sizes: list[int | str]) -> None:
    hashes = world.sizes(sizes)
    result = program_search(world, hashes[0], Flaky(0.0))
    assert result.outcome in {"ends_invalid", "no_culprit"}
    assert not any(record.repeat for record in result.probes)


def test_an_end_that_does_not_answer_as_it_is_called_is_probed_again(world: World) -> None:
    hashes = line(world, 5, 9)
    result = program_search(world, hashes[0], Flaky(0.0))
    assert (result.outcome, result.message) == ("no_culprit", "the bad end is good: fits, 495 B left")
    assert [(record.commit, record.repeat) for record in result.probes] == [
        (hashes[0], 0),
        (hashes[5], 0),
        (hashes[5], 1),
    ]


def test_a_deadline_leaves_the_likeliest_as_suspects(world: World) -> None:
    hashes = line(world, 40, 23)
    result = with_clock(world, hashes[0], 60 * 6.5, noise=Noise())
    assert result.outcome == "suspects"
    assert hashes[23] in {suspect.commit for suspect in result.suspects}
    assert with_clock(world, hashes[0], 90, noise=Noise(), use_cache=False).outcome == "inconclusive"


def test_steps_exceed_the_spread_of_probes(world: World) -> None:
    steps = {5: 200, 14: -100}
    hashes = world.sizes(
        [400 + place % 2 + sum(size for at, size in steps.items() if at <= place) for place in range(20)]
    )
    probe = Flaky(0.0, seed=6, spread=4)
    result = search(world, hashes[0], probe, use_cache=False, steps=StepsWanted())
    assert result.outcome == "no_culprit"
    assert result.waterfall is not None
    assert result.waterfall.spread is not None
    assert 1 < result.waterfall.spread.requested_bytes < 12
    assert [row.commit for row in result.steps if row.commit] == [hashes[5], hashes[14]]
    assert sum(row.delta.requested_bytes for row in result.steps) == (
        result.waterfall.end.requested_bytes - result.waterfall.start.requested_bytes
    )
    assert all("within the spread" in row.label for row in result.steps if not row.commit)
    assert len(probe.ran) < 60


Size = int | str


def merged_graph(world: World, fork: Size, side: Sequence[Size], merged: Size = 2000) -> list[str]:
    """Commit the fork, the good end on the main line, what a branch holds, and the merge of both; return hashes."""
    graph: list[tuple[list[int], dict[str, str]]] = [([], {"size.txt": f"{fork}"}), ([0], {"size.txt": "500"})]
    parent = 0
    for size in side:
        graph.append(([parent], {"size.txt": f"{size}"}))
        parent = len(graph) - 1
    graph.append(([1, parent], {"size.txt": f"{merged}"}))
    hashes = world.repo.import_graph(graph)
    world.repo.git("reset", "--quiet", "--hard", "main")
    return hashes


def search_merge(world: World, good: str) -> BisectResult:
    request = world.request(good, noise=Noise(), use_cache=False)
    return bisect_commits(request, probe=Flaky(0.0), environment={})


def names(result: BisectResult) -> set[str]:
    return {suspect.commit for suspect in result.suspects}


def test_a_branch_that_is_bad_from_an_untestable_beginning_on_leaves_suspects(world: World) -> None:
    hashes = merged_graph(world, "import", [1501, 1502, 1503])
    result = search_merge(world, hashes[1])
    assert result.outcome == "suspects"
    assert "its beginning cannot be tested" in result.message
    assert "good end" not in result.message
    assert result.last_good is not None
    assert result.last_good.name == hashes[1], "what was measured and answered good"
    assert result.first_bad is not None
    assert result.first_bad.name == hashes[-1]
    assert names(result) == {hashes[2], hashes[-1]}
