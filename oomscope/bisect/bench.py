"""Does what a search asks for, and in idle slots what it is likely to ask next.

Foresight only begins work early: what is asked, in which order, and what is answered do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from oomscope.bisect.executors import Action, Ended, Executor, Measured
from oomscope.bisect.reporter import Work
from oomscope.probe.job import Progress
from oomscope.probe.process.launch import StoppedError


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A measurement that can be made."""

    name: str
    """Tells it from all others; the same measurement has the same name."""
    begin: Callable[[int], Action]
    """Returns what makes it in the slot with a number."""
    label: str = ""
    """What people are shown of it."""


@dataclass
class Bench:
    """Errands under way and done.

    Args:
        executor: runs them.
        watched: told whenever what runs has changed, or has made a step forward.
    """

    executor: Executor
    watched: Callable[[tuple[Work, ...]], None] = lambda _running: None
    begun: int = 0
    """Errands begun so far."""
    _running: dict[int, str] = field(default_factory=dict)
    """The names of what runs, by slot."""
    _works: dict[int, Work] = field(default_factory=dict)
    """The same as people are shown them."""
    _stopped: set[int] = field(default_factory=set)
    """Slots in which something ends that nobody wants any more."""
    _done: dict[str, Ended] = field(default_factory=dict)

    def take(
        self, errand: Errand, ahead: Callable[[], Iterable[Errand]], progressed: Callable[[Progress], None]
    ) -> Measured:
        """Return what comes of ``errand``, which is forgotten with that, and raise what it raised.

        Args:
            errand: what is asked for now.
            ahead: what is likely to be asked next, likeliest first; looked at whenever a slot is free. What runs and
                is not among the first of these is stopped.
            progressed: told how ``errand`` goes on.
        """
        while errand.name not in self._done:
            self._fill(errand, ahead)
            self._keep(self.executor.wait(partial(self._progressed, errand.name, progressed)))
        ended = self._done.pop(errand.name)
        if ended.measured is None:
            raise ended.error or StoppedError
        return ended.measured

    def look(self, name: str) -> Measured | None:
        """Return what came of the errand ``name``, if it is done and was not asked for yet."""
        ended = self._done.get(name)
        return None if ended is None else ended.measured

    def close(self) -> None:
        """End all that runs."""
        self.executor.close()

    def _fill(self, errand: Errand, ahead: Callable[[], Iterable[Errand]]) -> None:
        """Stop what is not wanted and begin what is, as far as there are slots."""
        wanted = {each.name: each for each in islice(self._undone(errand, ahead), self.executor.slots)}
        for slot, name in self._running.items():
            if name not in wanted and slot not in self._stopped:
                self._stopped.add(slot)
                self.executor.stop(slot)
        under_way = {name for slot, name in self._running.items() if slot not in self._stopped}
        waiting = [each for name, each in wanted.items() if name not in under_way]
        free = [slot for slot in range(self.executor.slots) if slot not in self._running]
        for slot, each in zip(free, waiting, strict=False):
            self._running[slot] = each.name
            self._works[slot] = Work(slot=slot, label=each.label, is_asked=each.name == errand.name)
            self.begun += 1
            self.executor.start(slot, each.begin(slot))
        for slot, work in self._works.items():
            self._works[slot] = replace(work, is_asked=self._running[slot] == errand.name)
        self._tell()

    def _undone(self, errand: Errand, ahead: Callable[[], Iterable[Errand]]) -> Iterator[Errand]:
        """Yield ``errand``, then each of those ``ahead`` once that is not done."""
        yield errand
        seen = {errand.name}
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

    def _keep(self, ended: Ended) -> None:
        name = self._running.pop(ended.slot)
        self._works.pop(ended.slot, None)
        self._tell()
        self._stopped.discard(ended.slot)
        if not isinstance(ended.error, StoppedError):
            self._done[name] = ended
