"""Probes side by side answer what one after the other answers, whatever comes first, and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.commit_bisect import bisect_commits
from oomscope.bisect.lines.culprit import LineAnswer, LineSearch
from oomscope.bisect.lines.line import Line
from oomscope.bisect.lines.steps import StepWalk
from oomscope.bisect.results.predicate import Bad
from oomscope.bisect.results.reporter import SilentReporter
from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.results.sections import StepsWanted
from oomscope.bisect.run.experiment import Deadline, Experiment
from oomscope.bisect.run.identity import Content
from oomscope.bisect.run.prober import Prober
from oomscope.bisect.run.runner import LocalRunner, SlotRunner, visible_cards
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
    here = LocalRunner(run=lambda job, progress, **_: world.probe(job, progress))
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


def test_an_interrupt_ends_probes_that_were_started_ahead(tmp_path: Path) -> None:
    world = World(tmp_path)
    hashes = world.sizes([100, 200, 300, 1100])
    before = threading.active_count()

    class Interrupting(Threads):
        def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bisect_commits(world.request(hashes[0]), probe=world.probe, environment={}, executor=Interrupting(2))
    assert threading.active_count() == before
    assert not list(world.state_dirs.checkouts.iterdir())


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
    assert scheduler.peek("guess") is None


def test_cards_are_lent_to_one_probe_at_a_time() -> None:
    seen: list[str | None] = []
    both = threading.Barrier(2, timeout=10)

    def probe(job: ProbeJob, _progress: object = None, /) -> ProbeResult:
        if job.backend == "cuda":
            both.wait()
        seen.append(job.environment.get("CUDA_VISIBLE_DEVICES"))
        return measure(1)

    slots = SlotRunner(LocalRunner(run=lambda job, progress, **_: probe(job, progress)), Deadline(None), ("0", "3"))
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
