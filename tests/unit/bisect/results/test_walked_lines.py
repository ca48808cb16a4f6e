"""What a report can draw of a search: where everything lies, what runs, what it took."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from oomscope.bisect.results.reporter import Work
from oomscope.bisect.run.scheduler import Scheduler, Task, Threads
from oomscope.bisect.search.measured import Measured
from oomscope.probe.job import Progress
from tests.unit.bisect.worlds import World, culprit, measure


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_commit_of_the_line_has_a_place_probed_or_not(world: World) -> None:
    hashes = world.sizes([500, 500, 501, 1200, 1201, 1202])
    result = world.bisect(hashes[0])
    (line,) = result.lines
    assert world.listener.plan is not None
    assert world.listener.plan.line == line
    assert [place.commit for place in line.places] == [hashes[0], *hashes[2:]]
    assert [place.commits for place in line.places] == [2, 1, 1, 1, 1], "neighbours that measure the same are one"
    assert line.places[line.position[culprit(result).commit]].subject == "commit 3"


def test_places_know_whether_they_are_on_the_chosen_paths(world: World) -> None:
    good = world.repo.commit("good", {"size.txt": "500"})
    for index in range(3):
        world.repo.commit(f"other {index}", {"other": str(index)})
    world.repo.commit("bad", {"size.txt": "1200"})
    (line,) = world.bisect(good, paths=("size.txt",)).lines
    assert [place.is_chosen for place in line.places] == [False, False, False, False, True]


def test_what_runs_in_each_slot_is_told_with_what_is_asked_for() -> None:
    told: list[tuple[Work, ...]] = []
    gate = threading.Event()

    def errand(name: str) -> Task:
        def action(progressed, stop) -> Measured:
            progressed(Progress(stage="step", done=1, total=2))
            if name == "next":
                assert gate.wait(10)
            return Measured(answer=measure(1))

        return Task(name=name, begin=lambda _slot: action, label=f"{name}'s label")

    bench = Scheduler(Threads(2), told.append)
    bench.take(errand("asked"), lambda: [errand("next")], lambda _: None)
    gate.set()
    bench.take(errand("next"), tuple, lambda _: None)
    bench.close()
    assert bench.begun == 2
    first, last = told[0], next(works for works in reversed(told) if works)
    assert [(work.slot, work.label, work.is_asked) for work in first] == [
        (0, "asked's label", True),
        (1, "next's label", False),
    ]
    assert [(work.slot, work.label, work.is_asked) for work in last] == [(1, "next's label", True)]
    assert last[0].progress == Progress(stage="step", done=1, total=2)
    assert told[-1] == ()
