"""Who does the work of a search: the calling thread, one probe at a time, or threads that each wait for a probe."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from oomscope.probe.job import Progress
from oomscope.probe.result import ProbeResult


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What came of a probe."""

    result: ProbeResult
    missing: tuple[str, ...] = ()
    """What was not as in a full clone, one line each."""


Action = Callable[[Callable[[Progress], None], threading.Event], Measured]
"""Measures something; is given whom to tell of progress, and an event after which nobody wants the result."""


@dataclass(frozen=True, kw_only=True)
class Ended:
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

    def wait(self, progressed: Callable[[int, Progress], None]) -> Ended:
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
        """Keep ``action`` until somebody waits for it."""
        self._action = action

    def stop(self, _slot: int) -> None:
        """Forget the action."""
        self._action = None

    def wait(self, progressed: Callable[[int, Progress], None]) -> Ended:
        """Run the action; an interrupt of the program passes through."""
        action, self._action = self._action, None
        if action is None:
            raise ValueError("there is nothing to wait for")
        try:
            return Ended(slot=0, measured=action(lambda progress: progressed(0, progress), threading.Event()))
        except Exception as error:  # noqa: BLE001 # it is raised where the result is taken
            return Ended(slot=0, error=error)

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
    _events: queue.SimpleQueue[Ended | tuple[int, Progress]] = field(default_factory=queue.SimpleQueue)
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

    def wait(self, progressed: Callable[[int, Progress], None]) -> Ended:
        """Pass on what the threads say until one has ended."""
        while not isinstance(event := self._events.get(), Ended):
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
            ended = Ended(slot=slot, measured=action(lambda progress: self._events.put((slot, progress)), stop))
        except BaseException as error:  # noqa: BLE001 # it is raised where the result is taken
            ended = Ended(slot=slot, error=error)
        self._events.put(ended)
