"""The lines of a journal: one JSON object for each event of a search.

Lines are only appended. What the lines come to is :mod:`journal_state`'s, files and
locks are :mod:`store`'s; the format is described in docs/journal.md.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from oomscope.bisect.results.result import ProbeRecord
from oomscope.bisect.run.cache import KeptAnswer

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Read = TypeVar("Read")

SCHEMA_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The first line: what is searched, and under what circumstances."""

    search: int
    """The number of the search, which is also the name of its file."""
    kind: str
    """``commits``, ``configs``, ``surroundings`` or ``square``."""
    title: str
    """The ends as they were written."""
    bad: str
    """What counts as bad."""
    words: tuple[str, ...]
    """The words after ``oomscope bisect``; none for a search that a program began."""
    cwd: str
    """The directory that relative names count from."""
    place: str
    """Git's own directory of the repository that is searched, else the directory of the search."""
    pins: dict[str, str]
    """The commits that the revisions stood for, by side."""
    inputs: dict[str, str]
    """SHA-256 of each file that the search reads, by path."""
    surroundings: dict[str, Any]
    """Versions and variables (:class:`~oomscope.bisect.journal.inputs.Surroundings`)."""
    request: dict[str, Any]
    """The whole request, for people and programs to read."""


Question = tuple[Any, ...]
"""What tells a question of a search from all others."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A question of the search with its answer."""

    record: ProbeRecord
    asked: tuple[str, ...]
    """The names of the measurements that it rests on, one for each rank; none where there was nothing to measure."""

    @property
    def question(self) -> Question:
        """What tells it from all other questions."""
        record = self.record
        return (record.role, record.commit, record.subject, record.keys, self.asked)


Event = dict[str, Any]
"""One line: ``event`` says what happened, ``at`` when."""


def begun_event(begun: Begun) -> Event:
    """Return the first line."""
    return {"event": "begun", "schema_version": SCHEMA_VERSION, **asdict(begun)}


def resumed_event() -> Event:
    """Return the line of a search that goes on."""
    return {"event": "resumed"}


def planned_event(title: str, probes_at_most: int) -> Event:
    """Return the line that says what lies ahead."""
    return {"event": "planned", "title": title, "probes_at_most": probes_at_most}


def probed_event(answered: Answered, new: Mapping[str, KeptAnswer]) -> Event:
    """Return the line of an answer.

    Args:
        answered: the question and its answer.
        new: those of its measurements that no line before holds.
    """
    record = {**asdict(answered.record), "answer": answered.record.answer.value}
    measured = [{"name": name, **(new[name].to_json() if name in new else {})} for name in answered.asked]
    return {"event": "probed", "record": record, "measured": measured}


def ended_event(outcome: str, message: str, document: Mapping[str, Any] | None) -> Event:
    """Return the last line of a search that came to its end.

    Args:
        outcome: that of the result, or ``stopped``.
        message: one line.
        document: the whole result; None without one.
    """
    return {"event": "ended", "outcome": outcome, "message": message, "document": document}


def encode(event: Event, at: str) -> bytes:
    """Return ``event`` as a line."""
    return json.dumps({"at": at, **event}, separators=(",", ":")).encode() + b"\n"


def record_of(document: Mapping[str, Any]) -> ProbeRecord:
    """Read back the record of a line; what a later oomscope adds to it is left out."""
    return checked(ProbeRecord, document)


def checked(kind: type[Read], document: Mapping[str, Any]) -> Read:
    """Return the dataclass that ``document`` is the JSON of; what it has besides is left out.

    Raises:
        ValueError: a field is missing, or is not of its type.
    """
    read: Read = _reader(cast("Hashable", kind)).validate_python(document)
    return read


@cache
def _reader(kind: Hashable) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cast("Any", kind))
