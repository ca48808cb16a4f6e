"""The lines of a journal, one JSON object for each event of a search, and the state that they add up to.

Lines are only appended. A line that cannot be read changes nothing: its question is asked again. Only the first line
has to be whole. The format is described in docs/bisect.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.search.measured import Measured
from oomscope.document import Document
from oomscope.errors import InputError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Read = TypeVar("Read")
Event = dict[str, Any]
"""One line: ``event`` says what happened, ``at`` when."""

SCHEMA_VERSION = 6
_READERS: dict[type, TypeAdapter[Any]] = {}
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The first line: what is searched, and under what circumstances."""

    search: int
    """The number of the search, which is also the name of its file."""
    kind: str
    """The axis: ``commits``, ``config``, ``environment`` or ``both``."""
    title: str
    """The ends as they were written."""
    bad: str
    """What counts as bad."""
    first_parent: bool = False
    """Whether merges are not opened."""
    words: tuple[str, ...]
    """The words after ``oomscope bisect``; none for a search that a program began."""
    cwd: str
    """The directory that relative names count from."""
    place: str
    """Git's own directory of the repository that is searched, else the directory of the search."""
    pins: dict[str, str]
    """The commits that the revisions stood for, by side."""
    inputs: dict[str, str]
    """Digests of all that the answers depend on, by name: files, versions, packages, variables."""


@dataclass(frozen=True)
class Closing:
    """How a search ended, with an answer or without."""

    outcome: str
    """Outcome of the result, or ``stopped`` where an error or Ctrl-C ended it."""
    message: str
    culprit: str | None = None
    """Hash and subject of the commit at fault."""
    last_good: str | None = None
    first_bad: str | None = None
    """Names of the probes that the answer rests on; for commits, their hashes."""


@dataclass(kw_only=True)
class JournalState:
    """The state of a search, from the lines of its journal."""

    begun: Begun
    began_at: str = ""
    """Time of the beginning, by the clock of that machine; nothing depends on it."""
    answers: list[ProbeRecord] = field(default_factory=list)
    """Answers in the order given; a search that is resumed gives them again."""
    kept: dict[str, Measured] = field(default_factory=dict)
    """All measurements, by name."""
    closing: Closing | None = None
    """How the search ended; None for one that runs, or was cut off."""
    problems: list[str] = field(default_factory=list)
    """Lines that could not be read, one problem each."""

    @property
    def has_answer(self) -> bool:
        """Whether the search came to its end."""
        return self.closing is not None and self.closing.outcome != "stopped"

    def apply(self, event: Event) -> None:
        """Apply one more line; unknown events are ignored, and a line that raises changes nothing."""
        if event["event"] == "resumed":
            self.closing, self.answers = None, []
        elif event["event"] == "probed":
            record = _checked(ProbeRecord, event["record"])
            self.kept |= {name: Measured.from_json(row) for name, row in event["measured"].items()}
            self.answers.append(record)
        elif event["event"] == "ended":
            self.closing = _checked(Closing, event)


def begun_event(begun: Begun) -> Event:
    """Return the first line."""
    return {"event": "begun", "schema_version": SCHEMA_VERSION, **asdict(begun)}


def probed_event(record: ProbeRecord, new: Mapping[str, Measured]) -> Event:
    """Return the line of an answer.

    Args:
        record: the answer.
        new: those of the measurements that it rests on which no line before holds, by name.
    """
    measured = {name: each.to_json() for name, each in new.items()}
    return {"event": "probed", "record": {**asdict(record), "answer": record.answer.value}, "measured": measured}


def ended_event(closing: Closing) -> Event:
    """Return the last line of a search that ended."""
    return {"event": "ended", **asdict(closing)}


def encode(event: Event, at: str) -> bytes:
    """Return ``event`` as a line."""
    return json.dumps({"at": at, **event}, separators=(",", ":")).encode() + b"\n"


def whole_lines(content: bytes) -> int:
    """Return how many bytes of ``content`` are whole lines; what follows was being written when its writer died."""
    return content.rfind(b"\n") + 1


def journal_state_of(content: bytes, search: int, where: str) -> JournalState:
    """Return the state of the journal of ``search``. A torn last line counts as not written.

    Raises:
        InputError: the first line cannot be read, is another search's or of another version.
    """
    lines = content[: whole_lines(content)].splitlines()
    state = _beginning(lines[0] if lines else b"", search, where)
    for number, line in enumerate(lines[1:], start=2):
        try:
            state.apply(json.loads(line))
        except _UNREADABLE:
            state.problems.append(f"{where}:{number}: the line cannot be read; its probe is repeated")
    return state


def _beginning(line: bytes, search: int, where: str) -> JournalState:
    remedy = "move the file away and start a new search"
    try:
        event = json.loads(line)
        version = event["schema_version"]
        if version != SCHEMA_VERSION:
            raise InputError(
                f"is a journal of version {version}, and this oomscope writes version {SCHEMA_VERSION}",
                where=where,
                remedy="continue with the oomscope version that started it",
            )
        begun = _checked(Begun, event)
    except _UNREADABLE:
        raise InputError("its first line does not describe a search", where=f"{where}:1", remedy=remedy) from None
    if begun.search != search:
        raise InputError(f"holds the journal of search {begun.search}: it is a copy", where=where, remedy=remedy)
    return JournalState(begun=begun, began_at=str(event.get("at", "")))


def _checked(kind: type[Read], document: Mapping[str, Any]) -> Read:
    """Return the dataclass that ``document`` is the JSON of; further fields are ignored."""
    from pydantic import TypeAdapter

    read: Read = (_READERS.get(kind) or _READERS.setdefault(kind, TypeAdapter(kind))).validate_python(document)
    return read


@dataclass(frozen=True, kw_only=True)
class SearchStatus(Document):
    """One search."""

    search: int
    state: Literal["running", "interrupted", "ended"]
    """State of the search; ``interrupted``: it has no answer and no process works on it."""
    title: str
    """The ends of the search as they were written."""
    bad: str
    place: str
    began_at: str
    probes: int
    """Number of answers given."""
    outcome: str | None = None
    """Outcome of a search that ended."""
    message: str = ""
    """The answer, or what ended it without one."""

    @classmethod
    def of(cls, search_state: JournalState, *, is_running: bool) -> SearchStatus:
        """Return the status of the search of ``search_state``."""
        closing, begun = search_state.closing, search_state.begun
        has_answer = search_state.has_answer
        return cls(
            search=begun.search,
            state="running" if is_running else "ended" if has_answer else "interrupted",
            title=begun.title,
            bad=begun.bad,
            place=begun.place,
            began_at=search_state.began_at,
            probes=len(search_state.answers),
            outcome=closing.outcome if closing is not None and has_answer else None,
            message=closing.message if closing is not None else "",
        )
