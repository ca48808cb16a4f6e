"""What a merge brought in is searched among wrong answers too, where its beginning or its tip cannot be tested."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.results.noise import Noise
from oomscope.bisect.results.result import BisectResult
from tests.unit.bisect.flaky import Flaky
from tests.unit.bisect.worlds import World, culprit

Size = int | str


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def merge(world: World, fork: Size, side: Sequence[Size], merged: Size = 2000) -> list[str]:
    """Commit the fork, the good end on the main line, what a branch holds, and the merge of both; return the hashes."""
    graph: list[tuple[list[int], dict[str, str]]] = [([], {"size.txt": f"{fork}"}), ([0], {"size.txt": "500"})]
    parent = 0
    for size in side:
        graph.append(([parent], {"size.txt": f"{size}"}))
        parent = len(graph) - 1
    graph.append(([1, parent], {"size.txt": f"{merged}"}))
    hashes = world.repo.import_graph(graph)
    world.repo.git("reset", "--quiet", "--hard", "main")
    return hashes


def search(world: World, good: str) -> BisectResult:
    request = world.request(good, noise=Noise(), use_cache=False)
    return bisect_commits(request, probe=Flaky(0.0), environment={})


def names(result: BisectResult) -> set[str]:
    return {suspect.commit for suspect in result.suspects}


def test_a_branch_that_is_bad_from_an_untestable_beginning_on_leaves_suspects(world: World) -> None:
    hashes = merge(world, "import", [1501, 1502, 1503])
    result = search(world, hashes[1])
    assert result.outcome == "suspects"
    assert "its beginning cannot be tested" in result.message
    assert "good end" not in result.message
    assert result.last_good is not None
    assert result.last_good.name == hashes[1], "what was measured and answered good"
    assert result.first_bad is not None
    assert result.first_bad.name == hashes[-1]
    assert names(result) == {hashes[2], hashes[-1]}


def test_a_good_commit_after_an_untestable_beginning_is_enough(world: World) -> None:
    hashes = merge(world, "import", [501, 502, 1503, 1504])
    assert culprit(search(world, hashes[1])).commit == hashes[4]


def test_an_untestable_tip_and_the_merge_are_suspects_together(world: World) -> None:
    hashes = merge(world, 400, [501, 502, 503, "import"])
    result = search(world, hashes[1])
    assert result.outcome == "suspects"
    assert names(result) == {hashes[5], hashes[6]}
    assert result.last_good is not None
    assert result.last_good.name == hashes[4]


def test_a_merge_of_a_good_branch_is_at_fault_itself(world: World) -> None:
    hashes = merge(world, 400, [501, 502, 503])
    result = search(world, hashes[1])
    assert culprit(result).commit == hashes[-1]
    assert any("its tip is good" in note for note in result.notes)
