"""The journal of a running search: every answer is written before the next question is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oomscope.bisect.journal.journal_state import Answered, Event, JournalState, Question, ended_event, probed_event
from oomscope.bisect.journal.store import JournalFile
from oomscope.bisect.results.reporter import SearchPlan
from oomscope.bisect.results.result import BisectResult, ProbeRecord
from oomscope.bisect.search.measured import Measured


@dataclass
class Journal:
    """Writes what a search asks and is answered. If it cannot be written to, the search goes on without it.

    Args:
        begin: makes the file, with its first line, once the search is known to be valid; raises OSError.
        resumed: what the search wrote before it was interrupted.
    """

    begin: Callable[[], JournalFile]
    resumed: JournalState | None = None
    problem: str = ""
    """Why it cannot be written."""
    _file: JournalFile | None = None
    _written: set[str] = field(default_factory=set)
    """The names of the measurements that a line holds."""
    _questions: set[Question] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.resumed is not None:
            self._written = set(self.resumed.kept)
            self._questions = {answer.question for answer in self.resumed.answers}

    @property
    def kept(self) -> Mapping[str, Measured]:
        """The measurements made before the search was interrupted, by name."""
        return self.resumed.kept if self.resumed is not None else {}

    @property
    def number(self) -> int | None:
        """The number of the search; None where no journal is kept."""
        if self._file is not None:
            return self._file.number
        return self.resumed.begun.search if self.resumed is not None else None

    def planned(self, plan: SearchPlan) -> None:
        """Write what lies ahead; the first time, begin the file."""
        if self._file is None and not self.problem:
            try:
                self._file = self.begin()
            except OSError as error:
                self._give_up(error)
        self._write({"event": "planned", "title": plan.title, "probes_at_most": plan.probes_at_most})

    def probed(self, record: ProbeRecord, measured: Mapping[str, Measured]) -> None:
        """Write an answer that no line holds yet, with the measurements that it rests on."""
        answered = Answered(record=record, asked=tuple(measured))
        if answered.question in self._questions:
            return
        new = {name: each for name, each in measured.items() if name not in self._written}
        self._write(probed_event(answered, new))
        self._questions.add(answered.question)
        self._written.update(new)

    def ended(self, result: BisectResult) -> None:
        """Write the answer of the search."""
        self._write(ended_event(result.outcome, result.message, result.to_json()))

    def stopped(self, why: str) -> None:
        """Write that something ended the search without an answer."""
        self._write(ended_event("stopped", why))

    def close(self) -> None:
        """Close the file."""
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
