"""The journal of a running search: every answer is written before the next question is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oomscope.bisect.journal.journal_state import Closing, Event, JournalState, ended_event, probed_event
from oomscope.bisect.journal.store import JournalFile
from oomscope.bisect.results.result import BisectResult, CommitCulprit, ProbeRecord
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

    def __post_init__(self) -> None:
        self._written = set(self.kept)

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

    def open(self) -> None:
        """Begin the file, unless that was done."""
        if self._file is None and not self.problem:
            try:
                self._file = self.begin()
            except OSError as error:
                self._give_up(error)

    def probed(self, record: ProbeRecord, measured: Mapping[str, Measured]) -> None:
        """Write an answer, with those measurements it rests on that no line holds yet."""
        new = {name: each for name, each in measured.items() if name not in self._written}
        self._write(probed_event(record, new))
        self._written.update(new)

    def ended(self, result: BisectResult) -> None:
        """Write the answer of the search."""
        ends = (None if end is None else end.name for end in (result.last_good, result.first_bad))
        found = result.culprit
        culprit = f"{found.commit} {found.subject}" if isinstance(found, CommitCulprit) else None
        self._write(ended_event(Closing(result.outcome, result.message, culprit, *ends)))

    def stopped(self, why: str) -> None:
        """Write that something ended the search without an answer."""
        self._write(ended_event(Closing("stopped", why)))

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
