"""Keeps slots busy: runs what a search asks for, and in idle slots what it is likely to ask next.

Speculation only begins work early: it changes neither the questions and their order nor the answers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from oomscope.bisect.results.reporter import RunningProbe
from oomscope.bisect.search.measured import Measured
from oomscope.probe.job import OnProgress, Progress
from oomscope.probe.process.launch import StoppedError

Action = Callable[[OnProgress, threading.Event], Measured]
"""Measures something, given a callback for progress and an event that is set once the result is not needed."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A measurement that can be made."""

    name: str
    """Key of the measurement; equal measurements have equal names."""
    measure: Callable[[int, OnProgress, threading.Event], Measured]
    """Makes the measurement in the slot with a number: see :data:`Action`."""
    label: str = ""
    """Name of the measurement shown to people."""


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """How the action in ``slot`` ended."""

    slot: int
    outcome: Measured | BaseException


@dataclass
class Threads:
    """Runs each action in a thread of its own, which mostly waits for a process."""

    slots: int
    _events: queue.SimpleQueue[TaskEnd | tuple[int, Progress]] = field(default_factory=queue.SimpleQueue)
    _running: dict[int, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)

    def start(self, slot: int, action: Action) -> None:
        """Begin ``action`` in ``slot``, where none is."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(slot, action, stop), name=f"probe {slot}", daemon=True)
        self._running[slot] = thread, stop
        thread.start()

    def stop(self, slot: int) -> None:
        """Ask the action in ``slot`` to end without a result; it may finish all the same."""
        self._running[slot][1].set()

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        """Wait until an action has ended; meanwhile pass on what actions report, with their slots."""
        while not isinstance(event := self._events.get(), TaskEnd):
            progressed(*event)
        self._running.pop(event.slot)[0].join()
        return event

    def close(self) -> None:
        """Stop all actions and wait until they have ended."""
        for _, stop in self._running.values():
            stop.set()
        while self._running:
            self._running.popitem()[1][0].join()

    def _run(self, slot: int, action: Action, stop: threading.Event) -> None:
        outcome: Measured | BaseException
        try:
            outcome = action(lambda progress: self._events.put((slot, progress)), stop)
        except BaseException as error:  # noqa: BLE001 # it is raised where the result is taken
            outcome = error
        self._events.put(TaskEnd(slot=slot, outcome=outcome))


@dataclass
class Scheduler:
    """Tasks that run and tasks that are done."""

    executor: Threads
    watched: Callable[[tuple[RunningProbe, ...]], None] = lambda _running: None
    begun: int = 0
    """Tasks begun so far."""
    taken: int = 0
    """Outcomes taken so far."""
    _running: dict[int, str] = field(default_factory=dict)
    """The names of the running tasks, by slot."""
    _works: dict[int, RunningProbe] = field(default_factory=dict)
    """The running tasks as shown to people, by slot."""
    _stopped: set[int] = field(default_factory=set)
    """Slots whose task was stopped and has not ended yet."""
    _done: dict[str, Measured | BaseException] = field(default_factory=dict)

    def take(self, task: Task, ahead: Callable[[], Iterable[Task]]) -> Measured:
        """Return the outcome of ``task`` and forget it; raise what it raised.

        Args:
            task: what is asked for now.
            ahead: what is likely to be asked next, likeliest first; read whenever a slot is free. Running tasks that
                are not among the first of these are stopped.
        """
        while task.name not in self._done:
            self._fill(task, ahead)
            ended = self.executor.wait(self._progressed)
            name = self._running.pop(ended.slot)
            self._works.pop(ended.slot, None)
            self._notify()
            self._stopped.discard(ended.slot)
            if not isinstance(ended.outcome, StoppedError):
                self._done[name] = ended.outcome
        self.taken += 1
        outcome = self._done.pop(task.name)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def peek(self, name: str) -> Measured | None:
        """Return the outcome of the task ``name``, if it is done and was not taken yet."""
        outcome = self._done.get(name)
        return outcome if isinstance(outcome, Measured) else None

    def close(self) -> None:
        """End all running tasks."""
        self.executor.close()

    def _fill(self, task: Task, ahead: Callable[[], Iterable[Task]]) -> None:
        """Stop the tasks that are not wanted, and begin those that are while there are slots."""
        wanted = {each.name: each for each in islice(self._undone(task, ahead), self.executor.slots)}
        for slot, name in self._running.items():
            if name not in wanted and slot not in self._stopped:
                self._stopped.add(slot)
                self.executor.stop(slot)
        under_way = {name for slot, name in self._running.items() if slot not in self._stopped}
        waiting = [each for name, each in wanted.items() if name not in under_way]
        free = [slot for slot in range(self.executor.slots) if slot not in self._running]
        for slot, each in zip(free, waiting, strict=False):
            self._running[slot] = each.name
            self._works[slot] = RunningProbe(slot=slot, label=each.label, is_asked=each.name == task.name)
            self.begun += 1
            self.executor.start(slot, partial(each.measure, slot))
        for slot, work in self._works.items():
            self._works[slot] = replace(work, is_asked=self._running[slot] == task.name)
        self._notify()

    def _undone(self, task: Task, ahead: Callable[[], Iterable[Task]]) -> Iterator[Task]:
        """Yield ``task``, then each of those ``ahead`` that is not done, once."""
        yield task
        seen = {task.name}
        for each in ahead():
            if each.name not in self._done and each.name not in seen:
                seen.add(each.name)
                yield each

    def _progressed(self, slot: int, progress: Progress) -> None:
        if slot in self._works:
            self._works[slot] = replace(self._works[slot], progress=progress)
            self._notify()

    def _notify(self) -> None:
        self.watched(tuple(self._works[slot] for slot in sorted(self._works.keys() - self._stopped)))
