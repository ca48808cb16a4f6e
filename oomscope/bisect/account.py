"""What the lines of a journal come to: a fold over them, in which a line that cannot be read says nothing.

Such a line costs what it said and nothing else: the search asks that again. Only the first line has to be whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from oomscope.bisect.experiment import Untestable
from oomscope.bisect.journal import SCHEMA_VERSION, Answered, Begun, Event, record_of
from oomscope.bisect.memory import Kept
from oomscope.errors import InputError

_LEFT_OUT = Kept(answer=Untestable("left out"))


@dataclass(frozen=True, kw_only=True)
class Closing:
    """How a search came to its end, with an answer or without."""

    outcome: str
    """That of the result, or ``stopped`` where an error or Ctrl-C ended it."""
    message: str
    first_bad: str | None = None
    """Hash and subject of the commit that was found to be at fault."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What the lines of a journal come to."""

    begun: Begun
    began_at: str = ""
    """When, by the clock of that machine; nothing depends on it."""
    probes_at_most: int | None = None
    """As announced; untestable ones come on top."""
    answers: tuple[Answered, ...] = ()
    """Those that stand, in the order given."""
    taken_back: tuple[Answered, ...] = ()
    """Those that were taken back and not given anew."""
    kept: Mapping[str, Kept] = field(default_factory=dict)
    """What the answers that stand rest on, by name."""
    closing: Closing | None = None
    """None for a search that runs, or was cut off."""
    problems: tuple[str, ...] = ()
    """What could not be read, one line each."""

    @property
    def retaken(self) -> frozenset[str]:
        """The names of measurements that were taken back and have to be made anew."""
        return frozenset(name for answer in self.taken_back for name in answer.asked) - frozenset(self.kept)

    def last(self, count: int) -> tuple[Answered, ...]:
        """Return the last ``count`` answers, and all others that rest on the same measurements."""
        chosen = self.answers[len(self.answers) - min(count, len(self.answers)) :]
        names = {name for answer in chosen for name in answer.asked}
        return tuple(each for each in self.answers if each in chosen or names.intersection(each.asked))


def whole_lines(content: bytes) -> int:
    """Return how many bytes of ``content`` are whole lines; what follows was being written when its writer died."""
    return content.rfind(b"\n") + 1


def account_of(content: bytes, search: int, where: str, *, with_evidence: bool = True) -> Account:
    """Return what the journal of ``search`` comes to. A torn last line counts as not written.

    Args:
        content: the file.
        search: the number in its name.
        where: the file's name, for errors.
        with_evidence: whether ``kept`` holds what was measured, which takes most of the time, or names alone.

    Raises:
        InputError: the first line cannot be read, is another search's or of another version.
    """
    lines = content[: whole_lines(content)].splitlines()
    account = _beginning(lines[0] if lines else b"", search, where)
    for number, line in enumerate(lines[1:], start=2):
        try:
            account = _told(account, json.loads(line), Kept.from_json if with_evidence else _named)
        except (ValueError, KeyError, TypeError, AttributeError):
            problem = f"{where}:{number}: the line cannot be read; what it said is asked again"
            account = replace(account, problems=(*account.problems, problem))
    return account


def _beginning(line: bytes, search: int, where: str) -> Account:
    remedy = "move the file away and begin a new search"
    try:
        event = json.loads(line)
        version = event["schema_version"]
        if version != SCHEMA_VERSION:
            raise InputError(
                f"is a journal of version {version}, and this oomscope writes version {SCHEMA_VERSION}",
                where=where,
                remedy="go on with the oomscope that began it",
            )
        names = {each.name for each in fields(Begun)}
        begun = Begun(**{name: value for name, value in event.items() if name in names})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("its first line says of no search", where=f"{where}:1", remedy=remedy) from None
    if begun.search != search:
        raise InputError(f"holds the journal of search {begun.search}: it is a copy", where=where, remedy=remedy)
    return Account(begun=replace(begun, words=tuple(begun.words)), began_at=str(event.get("at", "")))


def _named(_row: Mapping[str, Any]) -> Kept:
    return _LEFT_OUT


def _told(account: Account, event: Event, read: Callable[[Mapping[str, Any]], Kept]) -> Account:
    """Return ``account`` after one more line; a kind of line that is not known yet says nothing."""
    kind = event["event"]
    if kind == "planned":
        return replace(account, probes_at_most=max(account.probes_at_most or 0, int(event["probes_at_most"])))
    if kind == "resumed":
        return replace(account, closing=None)
    if kind == "probed":
        return _answered(account, event, read)
    if kind == "undone":
        return _undone(account, int(event["count"]))
    if kind == "ended":
        return replace(account, closing=_closing(event))
    return account


def _answered(account: Account, event: Event, read: Callable[[Mapping[str, Any]], Kept]) -> Account:
    measured = event["measured"]
    answered = Answered(record=record_of(event["record"]), asked=tuple(row["name"] for row in measured))
    new = {row["name"]: read(row) for row in measured if len(row) > 1}
    kept = {**account.kept, **new}
    if missing := [name for name in answered.asked if name not in kept]:
        raise KeyError(*missing)  # it rests on a line that could not be read
    others = tuple(each for each in account.answers if each.question != answered.question)
    return replace(
        account,
        answers=(*others, answered),
        taken_back=tuple(each for each in account.taken_back if each.question != answered.question),
        kept=kept,
    )


def _undone(account: Account, count: int) -> Account:
    gone = account.last(count)
    names = {name for answer in gone for name in answer.asked}
    return replace(
        account,
        answers=tuple(each for each in account.answers if each not in gone),
        taken_back=(*account.taken_back, *gone),
        kept={name: kept for name, kept in account.kept.items() if name not in names},
        closing=None,
    )


def _closing(event: Event) -> Closing:
    culprit = (event.get("document") or {}).get("culprit") or {}
    first_bad = f"{culprit['commit']} {culprit['subject']}" if "commit" in culprit else None
    return Closing(outcome=event["outcome"], message=event["message"], first_bad=first_bad)


def newest(accounts: Sequence[Account], place: str) -> Account | None:
    """Return the last search of ``accounts`` in ``place``, by number: clocks go back, and numbers do not."""
    here = [account for account in accounts if account.begun.place == place]
    return max(here, key=lambda account: account.begun.search, default=None)
