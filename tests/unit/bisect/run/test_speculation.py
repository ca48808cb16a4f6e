"""What is begun early saves turns wherever a search knows what it will ask, and changes no answer.

A turn is what everybody waits for; here all that runs ends together.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from oomscope.bisect.code_vs_config import bisect_code_vs_config
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.search.steps import Threshold
from oomscope.bisect.vcs.ranges import RevisionRange
from tests.unit.bisect.run.test_scheduler import InStep, Shuffled
from tests.unit.bisect.worlds import World

SLOTS = 2


def turns(slots: int) -> InStep:
    return InStep(Shuffled(slots, Random(0)))


def asked(result: BisectResult) -> list[tuple[Any, ...]]:
    return [_asked(record) for record in result.probes]


def _asked(record: ProbeRecord) -> tuple[Any, ...]:
    return record.role, record.commit, record.subject, record.answer, record.bytes


def turns_of(world: World, request: CommitRequest, square: str | None = None) -> tuple[int, int]:
    """Return the turns that one slot takes and two take, which give the same answer by the same questions."""
    taken, answers = [], []
    for slots in (1, SLOTS):
        executor = turns(slots)
        means: dict[str, Any] = {"probe": world.probe, "environment": {}, "executor": executor}
        answers.append(
            bisect_commits(request, **means) if square is None else bisect_code_vs_config(request, square, **means)
        )
        taken.append(executor.turns)
    assert asked(answers[0]) == asked(answers[1])
    assert answers[0].outcome == answers[1].outcome
    assert answers[0].steps == answers[1].steps
    return taken[0], taken[1]


def test_a_good_end_is_looked_for_in_two_places_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number, size in enumerate((100, *[1100 + number for number in range(6)])):
        world.repo.minutes += 60 * 24 * 8
        world.repo.commit(f"week {number}", {"size.txt": f"{size}\n"})
    request = replace(world.request("HEAD", use_cache=False), range=RevisionRange(good="", bad="HEAD"))
    one, two = turns_of(world, request)
    assert (one, two) == (6, 4)


def test_looks_are_two_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    files = [{"size.txt": "100\n", "number.txt": f"{number}\n"} for number in range(17)]
    hashes = [world.repo.commit("change", each) for each in files]
    steps = StepsWanted(threshold=Threshold(), looks=8)
    one, two = turns_of(world, world.request(hashes[0], use_cache=False, steps=steps))
    assert (one, two) == (10, 5)


def test_both_ends_of_a_merged_branch_are_begun_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.sizes([100])[0]
    world.repo.git("checkout", "--quiet", "-b", "side")
    world.sizes([200, 1300])
    world.repo.git("checkout", "--quiet", "main")
    world.repo.commit("beside", {"other.txt": "1\n"})
    world.repo.merge("side", "merge the side")
    one, two = turns_of(world, world.request(good, use_cache=False))
    assert (one, two) == (5, 3)


def test_all_corners_of_a_square_are_begun_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.repo.commit("old", {"size.txt": "100\n", "conf.yaml": "a: 1\n"})
    world.repo.commit("new", {"size.txt": "1100\n", "conf.yaml": "a: 2\n"})
    one, two = turns_of(world, world.request(good, use_cache=False), square="conf.yaml")
    assert (one, two) == (4, 2)
