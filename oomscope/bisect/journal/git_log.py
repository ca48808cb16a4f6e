"""Export of a search over commits as ``git bisect log`` writes it, which ``git bisect replay`` reads.

git keeps one bad commit and any number of good ones, which must be its ancestors. So only answers that narrowed the
search are commands; what was measured besides (steps, hunks, corners) is a comment. Where answers were weighed, only
the two commits that the conclusion names are commands.
"""

from __future__ import annotations

from collections.abc import Iterator

from oomscope.bisect.journal.journal_state import JournalState
from oomscope.bisect.results.result import Role
from oomscope.bisect.search.line import Answer
from oomscope.errors import UsageError
from oomscope.printable import printable

_NARROWING: frozenset[Role] = frozenset({"good end", "good end sought", "bad end", "search", "merged branch"})
_COMMANDS = {Answer.GOOD: "good", Answer.BAD: "bad", Answer.UNTESTABLE: "skip"}


def git_bisect_log(search_state: JournalState) -> str:
    """Return the answers of ``search_state`` as git writes them.

    Raises:
        UsageError: the search was not over commits.
    """
    if search_state.begun.kind != "commits":
        raise UsageError(
            f"search {search_state.begun.search} was not a search over commits alone",
            remedy="see oomscope bisect log: git bisect supports commits only",
        )
    return "\n".join(_lines(search_state)) + "\n"


def _lines(search_state: JournalState) -> Iterator[str]:
    begun, closing = search_state.begun, search_state.closing
    yield f"# oomscope bisect, search {begun.search}: {_line(begun.title)}, bad is {_line(begun.bad)}"
    yield "git bisect start" + (" '--first-parent'" if begun.first_parent else "")
    narrowing = [each for each in search_state.answers if each.commit and each.role in _NARROWING]
    is_weighed = any(answer.repeat for answer in narrowing)
    concluded = _concluded(search_state) if is_weighed else {}
    for record in search_state.answers:
        if record.commit is None:
            continue
        command = _COMMANDS[record.answer]
        comment = command if record.role in _NARROWING else f"{record.role}, {command}"
        yield f"# {comment}: [{record.commit}] {_line(record.subject)} ({_line(record.reason)})"
        if is_weighed and concluded.get(record.commit) is record.answer:
            del concluded[record.commit]
        elif is_weighed or record not in narrowing:
            continue
        yield f"git bisect {command} {record.commit}"
    if closing is not None and closing.culprit:
        commit, _, subject = closing.culprit.partition(" ")
        yield f"# first bad commit: [{commit}] {_line(subject)}"


def _concluded(search_state: JournalState) -> dict[str, Answer]:
    """Return the commits between which a weighed search turns bad; before its end, those that were given."""
    closing, pins = search_state.closing, search_state.begun.pins
    if closing is None or not search_state.has_answer or closing.outcome == "inconclusive":
        good, bad = pins.get("good"), pins.get("bad")
    else:
        good, bad = closing.last_good, closing.first_bad
    sides = ((good, Answer.GOOD), (bad, Answer.BAD))
    return {commit: answer for commit, answer in sides if commit is not None}


def _line(text: str) -> str:
    """Return ``text`` as a part of one line: git could take another line for a command."""
    return " ".join(printable(text).split())
