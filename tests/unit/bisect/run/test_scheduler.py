"""Probes side by side answer what one after the other answers, whatever comes first, and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.changes.delta_search import DeltaSearch
from oomscope.bisect.code_vs_config import bisect_code_vs_config
from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.lines.culprit import LineAnswer, LineSearch
from oomscope.bisect.lines.line import Line
from oomscope.bisect.lines.steps import StepWalk
from oomscope.bisect.requests import CommitRequest
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SilentReporter
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.run.experiment import Deadline, Experiment
from oomscope.bisect.run.identity import Content
from oomscope.bisect.run.prober import Prober
from oomscope.bisect.run.runner import Here, SlotRunner, visible_cards
from oomscope.bisect.run.scheduler import Action, Scheduler, Task, TaskEnd, Threads
from oomscope.bisect.search.measured import Measured
from oomscope.bisect.search.steps import Threshold
from oomscope.bisect.vcs.repository import Commit, CommitLine
from oomscope.bisect.vcs.source_text import Source
from oomscope.probe.job import BundledTarget, HarnessTarget, ProbeJob, Progress
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import ProbeResult
from tests.unit.bisect.probe_results import error
from tests.unit.bisect.worlds import World, measure

JOB = ProbeJob(target=HarnessTarget(harness="/h.py", repo="/clone"), backend="virtual")


@dataclass
class Shuffled(Threads):
    """Lets running actions end in any order."""

    random: Random = field(default_factory=lambda: Random(0))
    running: dict[int, tuple[Action, threading.Event]] = field(default_factory=dict)

    def start(self, slot: int, action: Action) -> None:
        assert slot not in self.running
        self.running[slot] = action, threading.Event()

    def stop(self, slot: int) -> None:
        self.running[slot][1].set()

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        return self.end(self.random.choice(sorted(self.running)), progressed)

    def end(self, slot: int, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        action, stop = self.running.pop(slot)
        try:
            return TaskEnd(slot=slot, outcome=action(lambda progress: progressed(slot, progress), stop))
        except Exception as raised:  # noqa: BLE001 # as an executor does
            return TaskEnd(slot=slot, outcome=raised)

    def close(self) -> None:
        self.running.clear()


@dataclass
class Sizes:
    """A line of commits of which each wants so many bytes (None: it crashes), as a subject that is probed."""

    sizes: Sequence[int | None]
    probed: list[str] = field(default_factory=list)

    def contents(self, commits: Sequence[Commit]) -> list[str]:
        return [commit.tree for commit in commits]

    def experiment(self, commit: Commit) -> Experiment:
        job = replace(JOB, environment={"SIZE": str(self.sizes[int(commit.hash)])})
        return Experiment(job=job, content=Content(tree=commit.tree))

    def source(self, _commit: Commit) -> Source:
        return Source(all_fixed=True)

    def probe(self, job: ProbeJob, _progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
        size = job.environment["SIZE"] or ""
        self.probed.append(size)
        return measure(int(size)) if size.isdigit() else error("step")


def commit(position: int) -> Commit:
    name = str(position)
    return Commit(hash=name, tree=name, parents=(), author="", date="", subject=name)


def searched(
    sizes: Sequence[int | None], executor: Threads, *, steps: bool
) -> tuple[LineAnswer, object, list[ProbeRecord]]:
    world = Sizes(sizes)
    first, *others = map(commit, range(len(sizes)))
    here = Here(run=lambda job, progress, **_: world.probe(job, progress))
    with Prober(
        runner=here, bad=Bad(), reporter=SilentReporter(), environment={}, scheduler=Scheduler(executor)
    ) as prober:
        prober.deadline = replace(prober.deadline, clock=lambda: 0.0)
        line = Line.of(CommitLine(base=first, commits=tuple(others)), world, prober)  # type: ignore[arg-type]
        answer = LineSearch(line).run()
        wanted = StepsWanted(threshold=Threshold(), looks=2)
        found = StepWalk(wanted).walk(line) if steps else None
        return answer, found, prober.records


SIZES = st.none() | st.integers(0, 2000).map(lambda size: size // 500 * 500)


@settings(max_examples=25)
@given(st.lists(SIZES, min_size=2, max_size=24), st.integers(2, 5), st.integers(), st.booleans())
def test_a_line_has_one_answer_and_one_record(sizes: list[int | None], slots: int, seed: int, steps: bool) -> None:
    sizes[0] = 0
    assert searched(sizes, Shuffled(slots, random=Random(seed)), steps=steps) == searched(
        sizes, Shuffled(1), steps=steps
    )


@dataclass(frozen=True)
class Together:
    """Changes of which some are bad only together, and some make no sense without another."""

    count: int
    fault: frozenset[int]
    needs: dict[int, int]
    good = "good"
    bad = "bad"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.count)))

    def units(self) -> list[frozenset[int]]:
        return [frozenset({change}) for change in range(self.count)]

    def is_valid(self, changes: frozenset[int]) -> bool:
        return all(needed in changes for change, needed in self.needs.items() if change in changes)

    def experiment(self, changes: frozenset[int]) -> Experiment:
        size = 2000 if self.fault <= changes else len(changes)
        return Experiment(
            job=ProbeJob(target=BundledTarget(config={"made": sorted(changes), "size": size}), backend="virtual")
        )


def probe_size(job: ProbeJob, _progress: Callable[[Progress], None] | None = None, /) -> ProbeResult:
    assert isinstance(job.target, BundledTarget)
    return measure(job.target.config["size"])


@settings(max_examples=15)
@given(st.data(), st.integers(2, 12), st.integers(2, 5), st.integers())
def test_a_minimal_set_is_one(data: st.DataObject, count: int, slots: int, seed: int) -> None:
    fault = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))
    needs = {change: change - 1 for change in data.draw(st.sets(st.integers(1, count - 1), max_size=3))}
    change_set = Together(count, fault, needs)

    def found(executor: Threads) -> tuple[object, list[ProbeRecord]]:
        here = Here(run=lambda job, progress, **_: probe_size(job, progress))
        with Prober(
            runner=here, bad=Bad(), reporter=SilentReporter(), environment={}, scheduler=Scheduler(executor)
        ) as prober:
            prober.deadline = replace(prober.deadline, clock=lambda: 0.0)
            search = DeltaSearch(change_set, prober)  # type: ignore[arg-type]
            assert search.ends() is None
            return search.minimal(change_set.units), prober.records

    assert found(Shuffled(slots, random=Random(seed))) == found(Shuffled(1))


def test_side_by_side_takes_fewer_turns() -> None:
    """A turn is what everybody waits for; here all that runs ends together."""
    waited = {1: 0, 2: 0, 4: 0}
    for slots in waited:
        for good in range(1, 64, 4):
            turns = InStep(slots)
            searched([0] * good + [2000] * (64 - good), turns, steps=False)
            waited[slots] += turns.turns
    assert waited[2] <= 0.75 * waited[1]
    assert waited[4] <= 0.55 * waited[1]


@dataclass
class InStep(Shuffled):
    """All that runs ends at once; a turn is over when all of it has been taken."""

    turns: int = 0
    _this_turn: set[int] = field(default_factory=set)

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        if not self._this_turn & self.running.keys():
            self.turns += 1
            self._this_turn = set(self.running)
        slot = min(self._this_turn & self.running.keys())
        self._this_turn.discard(slot)
        return self.end(slot, progressed)


def test_each_slot_has_a_clone_and_none_is_left(tmp_path: Path) -> None:
    world = World(tmp_path)
    hashes = world.sizes([*range(100, 1000, 100), *range(1100, 2000, 100)])
    alone = world.bisect(hashes[0], use_cache=False)
    world.probe.jobs.clear()
    world.listener.records.clear()
    both = world.bisect(hashes[0], use_cache=False, jobs=3)
    places = {Path(job.target.repo).name for job in world.probe.jobs if isinstance(job.target, HarnessTarget)}
    assert places == {"clone", "clone-2", "clone-3"}
    assert both.culprit == alone.culprit
    assert [(probe.commit, probe.answer, probe.peak) for probe in both.probes] == [
        (probe.commit, probe.answer, probe.peak) for probe in alone.probes
    ]


def test_an_interrupt_ends_what_was_foreseen(tmp_path: Path) -> None:
    world = World(tmp_path)
    hashes = world.sizes([100, 200, 300, 1100])
    before = threading.active_count()

    class Interrupting(Threads):
        def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bisect_commits(world.request(hashes[0]), probe=world.probe, environment={}, executor=Interrupting(2))
    assert threading.active_count() == before
    assert not list(world.places.checkouts.iterdir())


def test_what_is_not_wanted_any_more_is_stopped() -> None:
    begun, ended = threading.Event(), list[str]()

    def hang(_progressed: object, stop: threading.Event) -> Measured:
        begun.set()
        assert stop.wait(10)
        ended.append("hang")
        raise StoppedError

    def after_it(_progressed: object, _stop: threading.Event) -> Measured:
        assert begun.wait(10)
        return Measured(answer=measure(1))

    def task(name: str, action: Action) -> Task:
        return Task(name=name, measure=lambda _slot, progressed, stop: action(progressed, stop))

    def ahead() -> Iterator[Task]:
        yield task("guess", hang)

    scheduler = Scheduler(Threads(2))
    first = task("first", after_it)
    assert scheduler.take(first, ahead).answer == measure(1)
    assert scheduler.take(task("second", after_it), tuple).answer == measure(1)
    scheduler.close()
    assert ended == ["hang"]
    assert scheduler.look("guess") is None


def test_cards_are_lent_to_one_probe_at_a_time() -> None:
    seen: list[str | None] = []
    both = threading.Barrier(2, timeout=10)

    def probe(job: ProbeJob, _progress: object = None, /) -> ProbeResult:
        if job.backend == "cuda":
            both.wait()
        seen.append(job.environment.get("CUDA_VISIBLE_DEVICES"))
        return measure(1)

    slots = SlotRunner(Here(run=lambda job, progress, **_: probe(job, progress)), Deadline(None), ("0", "3"))
    on_card = replace(JOB, backend="cuda", target=BundledTarget(config={}))
    threads = [
        threading.Thread(target=slots.measure, args=(Experiment(job=on_card), on_card, slot, print, threading.Event()))
        for slot in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, seen)) == ["0", "3"]
    virtual = replace(on_card, backend="virtual")
    slots.measure(Experiment(job=virtual), virtual, 0, print, threading.Event())
    assert seen[-1] is None


def test_visible_cards_are_those_of_the_variable_or_all(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_cards({}, tmp_path) == ("0", "1")
    assert visible_cards({"CUDA_VISIBLE_DEVICES": "3, GPU-8f2b,-1,2"}, tmp_path) == ("3", "GPU-8f2b")
    assert visible_cards({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


SLOTS = 2


def asked(result: BisectResult) -> list[tuple[Any, ...]]:
    return [(each.role, each.commit, each.subject, each.answer, each.peak) for each in result.probes]


def turns_of(world: World, request: CommitRequest, square: str | None = None) -> tuple[int, int]:
    """Return the turns that one slot takes and two take, which give the same answer by the same questions."""
    taken, answers = [], []
    for slots in (1, SLOTS):
        executor = InStep(slots)
        means: dict[str, Any] = {"probe": world.probe, "environment": {}, "executor": executor}
        answers.append(
            bisect_commits(request, **means) if square is None else bisect_code_vs_config(request, square, **means)
        )
        taken.append(executor.turns)
    assert asked(answers[0]) == asked(answers[1])
    assert answers[0].outcome == answers[1].outcome
    assert answers[0].steps == answers[1].steps
    return taken[0], taken[1]


def test_all_corners_of_a_square_are_begun_together(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = world.repo.commit("old", {"size.txt": "100\n", "conf.yaml": "a: 1\n"})
    world.repo.commit("new", {"size.txt": "1100\n", "conf.yaml": "a: 2\n"})
    one, two = turns_of(world, world.request(good, use_cache=False), square="conf.yaml")
    assert (one, two) == (4, 2)
