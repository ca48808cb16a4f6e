"""A good end is looked for by days along first parents, and what was answered on the way is not asked again."""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.bisect.lines.good_end import DAYS
from oomscope.bisect.results.result import BisectResult
from oomscope.bisect.vcs.repository import Repository
from oomscope.errors import ExitCode
from tests.unit.bisect.worlds import World, culprit, with_clock

DAY_MINUTES = 24 * 60


def daily(world: World, sizes: Sequence[int | str]) -> list[str]:
    """Commit one a day, the last of them today."""
    hashes = []
    for day, size in enumerate(sizes):
        world.repo.minutes += DAY_MINUTES - 1
        hashes.append(world.repo.commit(f"day {day}", {"size.txt": f"{size}", "day": str(day)}))
    return hashes


def search(world: World, **options: object) -> BisectResult:
    result = world.bisect("", **options)
    assert len({record.commit for record in result.probes}) == len(result.probes), "nothing is asked twice"
    return result


def ages(world: World, result: BisectResult, hashes: Sequence[str]) -> list[int]:
    return [len(hashes) - 1 - hashes.index(str(probe.commit)) for probe in result.probes if "sought" in probe.role]


def test_the_search_goes_back_until_a_commit_is_good(world: World) -> None:
    hashes = daily(world, [500] * 15 + [600] * 5 + [1200] * 10)
    result = search(world)
    assert ages(world, result, hashes) == [1, 3, 7, 14]
    assert result.good == hashes[-1 - 14]
    assert culprit(result).commit == hashes[20]
    assert len(result.probes) == 1 + 4 + 3, "between the good and the nearest bad one"
    assert [step.commit for step in result.steps if step.delta.requested_bytes] == [hashes[20]]


def test_untestable_commits_are_passed_by(world: World) -> None:
    hashes = daily(world, [500] * 6 + ["import"] + [1200] * 3)
    result = search(world)
    assert ages(world, result, hashes) == [1, 3, 7]
    assert (result.outcome, result.good) == ("suspects", hashes[2])
    assert [suspect.commit for suspect in result.suspects] == hashes[6:8]


def test_that_there_is_no_good_commit_is_reported(world: World) -> None:
    hashes = daily(world, [1200] * 4)
    result = search(world)
    assert (result.outcome, result.exit_code) == ("ends_invalid", ExitCode.INCONCLUSIVE)
    assert result.message == f"none of 2 commits back to {hashes[0][:10]} is good"
    assert (result.good, result.candidates) == (hashes[0], 3)


def test_a_bad_end_that_is_good_needs_no_good_end(world: World) -> None:
    daily(world, [500, 600])
    result = search(world)
    assert (result.outcome, len(result.probes)) == ("no_culprit", 1)
    assert result.message.startswith("the bad end is good: fits")


def test_a_bad_end_that_cannot_be_tested_ends_it(world: World) -> None:
    daily(world, [500, "import"])
    result = search(world)
    assert (result.outcome, len(result.probes)) == ("ends_invalid", 1)
    assert result.message.startswith("the bad end cannot be tested: import")


def test_a_deadline_before_a_good_end_gives_no_answer(world: World) -> None:
    daily(world, [500] + [1200] * 20)
    result = with_clock(world, "", deadline_s=60 * 2 + 30)
    assert (result.outcome, result.message) == ("inconclusive", "the deadline passed before a good end was found")


def test_days_are_those_of_the_committer_along_first_parents(world: World) -> None:
    first = world.repo.commit("first", {"a": "1"})
    world.repo.git("checkout", "--quiet", "-b", "side")
    world.repo.minutes += DAY_MINUTES
    world.repo.commit("on the side", {"b": "1"})
    world.repo.git("checkout", "--quiet", "main")
    world.repo.minutes += DAY_MINUTES // 2
    merge = world.repo.merge("side", "merge")
    repository = Repository.open(world.repo.path)
    commit = repository.resolve(merge)
    assert repository.days_before(commit, 1).hash == first
    assert repository.days_before(commit, DAYS[-1]).hash == first
    root = repository.resolve(first)
    assert repository.days_before(root, 1) == root
