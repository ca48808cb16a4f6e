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
from typing import Protocol

from oomscope.bisect.results.reporter import Work
from oomscope.probe.job import Progress
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True, kw_only=True)
class Task:
    """A measurement that can be made."""

    name: str
    """Tells it from all others; the same measurement has the same name."""
    begin: Callable[[int], Action]
    """Returns what makes it in the slot with a number."""
    label: str = ""
    """What people are shown of it."""


@dataclass
class Scheduler:
    """Tasks under way and done.

    Args:
        executor: runs them.
        watched: told whenever what runs has changed, or has made a step forward.
    """

    executor: Executor
    watched: Callable[[tuple[Work, ...]], None] = lambda _running: None
    begun: int = 0
    """Tasks begun so far."""
    _running: dict[int, str] = field(default_factory=dict)
    """The names of what runs, by slot."""
    _works: dict[int, Work] = field(default_factory=dict)
    """The same as people are shown them."""
    _stopped: set[int] = field(default_factory=set)
    """Slots whose task was stopped and has not ended yet."""
    _done: dict[str, TaskEnd] = field(default_factory=dict)

    def take(self, task: Task, ahead: Callable[[], Iterable[Task]], progressed: Callable[[Progress], None]) -> Measured:
        """Return what comes of ``task``, which is forgotten with that, and raise what it raised.

        Args:
            task: what is asked for now.
            ahead: what is likely to be asked next, likeliest first; looked at whenever a slot is free. What runs and
                is not among the first of these is stopped.
            progressed: told how ``task`` goes on.
        """
        while task.name not in self._done:
            self._fill(task, ahead)
            self._keep(self.executor.wait(partial(self._progressed, task.name, progressed)))
        ended = self._done.pop(task.name)
        if ended.measured is None:
            raise ended.error or StoppedError
        return ended.measured

    def look(self, name: str) -> Measured | None:
        """Return what came of the task ``name``, if it is done and was not asked for yet."""
        ended = self._done.get(name)
        return None if ended is None else ended.measured

    def close(self) -> None:
        """End all that runs."""
        self.executor.close()

    def _fill(self, task: Task, ahead: Callable[[], Iterable[Task]]) -> None:
        """Stop what is not wanted and begin what is, as far as there are slots."""
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
            self._works[slot] = Work(slot=slot, label=each.label, is_asked=each.name == task.name)
            self.begun += 1
            self.executor.start(slot, each.begin(slot))
        for slot, work in self._works.items():
            self._works[slot] = replace(work, is_asked=self._running[slot] == task.name)
        self._tell()

    def _undone(self, task: Task, ahead: Callable[[], Iterable[Task]]) -> Iterator[Task]:
        """Yield ``task``, then each of those ``ahead`` once that is not done."""
        yield task
        seen = {task.name}
        for each in ahead():
            if each.name not in self._done and each.name not in seen:
                seen.add(each.name)
                yield each

    def _progressed(self, asked: str, progressed: Callable[[Progress], None], slot: int, progress: Progress) -> None:
        if self._running.get(slot) == asked:
            progressed(progress)
        if slot in self._works:
            self._works[slot] = replace(self._works[slot], progress=progress)
            self._tell()

    def _tell(self) -> None:
        self.watched(tuple(self._works[slot] for slot in sorted(self._works.keys() - self._stopped)))

    def _keep(self, ended: TaskEnd) -> None:
        name = self._running.pop(ended.slot)
        self._works.pop(ended.slot, None)
        self._tell()
        self._stopped.discard(ended.slot)
        if not isinstance(ended.error, StoppedError):
            self._done[name] = ended


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a probe."""

    result: ProbeResult
    missing: tuple[str, ...] = ()
    """What was not as in a full clone, one line each."""


Action = Callable[[Callable[[Progress], None], threading.Event], Measured]
"""Measures something, given a callback for progress and an event that is set once the result is not needed."""


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """How the action in ``slot`` ended: with one of the other two."""

    slot: int
    measured: Measured | None = None
    error: BaseException | None = None


class Executor(Protocol):
    """Runs actions, one in a slot."""

    @property
    def slots(self) -> int:
        """How many actions may run at once; their slots are numbered from 0."""
        ...

    def start(self, slot: int, action: Action) -> None:
        """Begin ``action`` in ``slot``, where none is."""
        ...

    def stop(self, slot: int) -> None:
        """Ask the action in ``slot`` to end without a result; it may come to its end all the same."""
        ...

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        """Wait until an action that was started has ended.

        Args:
            progressed: told in the calling thread of what an action says, with its slot.
        """
        ...

    def close(self) -> None:
        """Stop all actions and wait until they are gone."""
        ...


@dataclass
class Inline:
    """Runs one action at a time in the thread that waits for it."""

    slots: int = field(default=1, init=False)
    _action: Action | None = None

    def start(self, _slot: int, action: Action) -> None:
        """Keep ``action`` until :meth:`wait`."""
        self._action = action

    def stop(self, _slot: int) -> None:
        """Forget the action."""
        self._action = None

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        """Run the action; an interrupt of the program passes through."""
        action, self._action = self._action, None
        if action is None:
            raise ValueError("there is nothing to wait for")
        try:
            return TaskEnd(slot=0, measured=action(lambda progress: progressed(0, progress), threading.Event()))
        except Exception as error:  # noqa: BLE001 # it is raised where the result is taken
            return TaskEnd(slot=0, error=error)

    def close(self) -> None:
        """Forget the action."""
        self._action = None


@dataclass
class Threads:
    """Runs each action in a thread of its own, which mostly waits for a process.

    Args:
        slots: how many at once.
    """

    slots: int
    _events: queue.SimpleQueue[TaskEnd | tuple[int, Progress]] = field(default_factory=queue.SimpleQueue)
    _running: dict[int, tuple[threading.Thread, threading.Event]] = field(default_factory=dict)

    def start(self, slot: int, action: Action) -> None:
        """Start a thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(slot, action, stop), name=f"probe {slot}", daemon=True)
        self._running[slot] = thread, stop
        thread.start()

    def stop(self, slot: int) -> None:
        """Set the action's event."""
        self._running[slot][1].set()

    def wait(self, progressed: Callable[[int, Progress], None]) -> TaskEnd:
        """Pass on what the threads say until one has ended."""
        while not isinstance(event := self._events.get(), TaskEnd):
            progressed(*event)
        self._running.pop(event.slot)[0].join()
        return event

    def close(self) -> None:
        """Set all events and wait for all threads."""
        for _, stop in self._running.values():
            stop.set()
        while self._running:
            self._running.popitem()[1][0].join()

    def _run(self, slot: int, action: Action, stop: threading.Event) -> None:
        try:
            ended = TaskEnd(slot=slot, measured=action(lambda progress: self._events.put((slot, progress)), stop))
        except BaseException as error:  # noqa: BLE001 # it is raised where the result is taken
            ended = TaskEnd(slot=slot, error=error)
        self._events.put(ended)
