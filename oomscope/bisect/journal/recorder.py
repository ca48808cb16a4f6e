"""Writes the journal of a running search, and answers from it what the search asked before it was resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from oomscope.bisect.journal.journal_state import (
    Answered,
    Event,
    JournalState,
    Question,
    ended_event,
    planned_event,
    probed_event,
)
from oomscope.bisect.journal.store import JournalFile
from oomscope.bisect.results.reporter import Reporter, SearchPlan, Work
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.run.cache import KeptAnswer, Key
from oomscope.bisect.run.identity import digest_of
from oomscope.probe.job import Progress


@dataclass
class Recorder:
    """A reporter that passes on what it hears and writes it down, and the memory of the search.

    Args:
        reporter: told of everything.
        begin: makes the journal, with its first line, once the search is known to be one; raises OSError.
        search_state: what an earlier life of the search has written.

    A journal that cannot be written to is given up, and the search goes on; :attr:`problem` says so.
    """

    reporter: Reporter
    begin: Callable[[], JournalFile]
    search_state: JournalState | None = None
    problem: str = ""
    _file: JournalFile | None = None
    _kept: dict[str, KeptAnswer] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    """The names of what a line holds."""
    _told: set[Question] = field(default_factory=set)
    _asked: list[str] = field(default_factory=list)
    """What the question that is open has asked so far."""

    def __post_init__(self) -> None:
        if self.search_state is not None:
            self._kept = dict(self.search_state.kept)
            self._written = set(self.search_state.kept)
            self._told = {answer.question for answer in self.search_state.answers}

    @property
    def number(self) -> int | None:
        """The number of the search; None where no journal is kept."""
        if self._file is not None:
            return self._file.number
        return self.search_state.begun.search if self.search_state is not None else None

    # As a memory.

    def recall(self, key: Key) -> KeptAnswer | None:
        """Return what was answered before."""
        return self._kept.get(digest_of(key))

    def learn(self, key: Key, kept: KeptAnswer) -> None:
        """Keep an answer for the line of the question that is open."""
        name = digest_of(key)
        self._asked.append(name)
        self._kept.setdefault(name, kept)

    # As a reporter.

    def planned(self, plan: SearchPlan) -> None:
        """Write what lies ahead; the first time, begin the journal."""
        if self._file is None and not self.problem:
            try:
                self._file = self.begin()
            except OSError as error:
                self._give_up(error)
        self._write(planned_event(plan.title, plan.probes_at_most))
        self.reporter.planned(plan)

    def probing(self, name: str, number: int) -> None:
        """Pass it on."""
        self._asked = []
        self.reporter.probing(name, number)

    def progressed(self, progress: Progress) -> None:
        """Pass it on."""
        self.reporter.progressed(progress)

    def at_work(self, running: tuple[Work, ...]) -> None:
        """Pass it on."""
        self.reporter.at_work(running)

    def probed(self, record: ProbeRecord) -> None:
        """Write an answer that no line holds yet."""
        answered = Answered(record=record, asked=tuple(self._asked))
        if answered.question not in self._told:
            new = {name: self._kept[name] for name in self._asked if name not in self._written}
            self._write(probed_event(answered, new))
            self._told.add(answered.question)
            self._written.update(new)
        self.reporter.probed(record)

    # The end.

    def ended(self, result: BisectResult) -> None:
        """Write the answer of the search."""
        self._write(ended_event(result.outcome, result.message, result.to_json()))

    def stopped(self, why: str) -> None:
        """Write that something ended the search without an answer."""
        self._write(ended_event("stopped", why, None))

    def close(self) -> None:
        """Let go of the journal."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: Event) -> None:
        if self._file is None:
            return
        try:
            self._file.append(event)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        where = f" {self._file.path}" if self._file else ""
        self.problem = f"the journal{where} cannot be written ({error.strerror}): this search cannot be resumed"
        self.close()
