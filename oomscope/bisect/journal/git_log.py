"""Export of a search over commits as ``git bisect log`` writes it, which ``git bisect replay`` reads.

git keeps one bad commit and any number of good ones, which must be its ancestors. So only answers that narrowed the
search are commands; what was measured besides (steps, hunks, corners) is a comment. Where answers may be wrong, a
commit is called once what the search concluded, and answers that disagree are comments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oomscope.bisect.journal.journal_state import Answered, Closing, JournalState, Question
from oomscope.bisect.results.result import Role
from oomscope.bisect.results.sections import WalkedLine
from oomscope.bisect.search.line import Answer
from oomscope.errors import UsageError
from oomscope.printable import printable

_NARROWING: frozenset[Role] = frozenset({"good end", "good end sought", "bad end", "search", "merged branch"})
_COMMANDS = {Answer.GOOD: "good", Answer.BAD: "bad", Answer.UNTESTABLE: "skip"}


def git_bisect_log(search_state: JournalState) -> str:
    """Return the answers of ``search_state`` that stand, as git writes them.

    Raises:
        UsageError: the search was not over commits.
    """
    if search_state.begun.kind != "commits":
        raise UsageError(
            f"search {search_state.begun.search} was not over commits alone",
            remedy="see oomscope bisect log: git bisect knows no keys, no variables and no corners",
        )
    return "\n".join(_lines(search_state)) + "\n"


def _lines(search_state: JournalState) -> Iterator[str]:
    begun = search_state.begun
    yield f"# oomscope bisect, search {begun.search}: {_line(begun.title)}, bad is {_line(begun.bad)}"
    first_parent = " '--first-parent'" if begun.request.get("first_parent") else ""
    yield f"git bisect start{first_parent}"
    commands = _commands(search_state)
    for answer in search_state.answers:
        yield from _answer_lines(answer)
        if command := commands.get(answer.question):
            yield f"git bisect {command} {answer.record.commit}"
    if search_state.closing is not None and search_state.closing.first_bad:
        commit, _, subject = search_state.closing.first_bad.partition(" ")
        yield f"# first bad commit: [{commit}] {_line(subject)}"


def _answer_lines(answer: Answered) -> Iterator[str]:
    record = answer.record
    if record.commit is None:
        return
    command = _COMMANDS[record.answer]
    comment = command if record.role in _NARROWING else f"{record.role}, {command}"
    yield f"# {comment}: [{record.commit}] {_line(record.subject)} ({_line(record.reason)})"


def _commands(search_state: JournalState) -> dict[Question, str]:
    """Return the commands, by the answers that they follow."""
    narrowing = [each for each in search_state.answers if each.record.commit and each.record.role in _NARROWING]
    if is_weighed(narrowing):
        narrowing = list(_speaking(narrowing, posterior_answers(search_state)))
    return {each.question: _COMMANDS[each.record.answer] for each in narrowing}


def _speaking(answers: Sequence[Answered], known: Mapping[str, Answer]) -> Iterator[Answered]:
    """Yield one answer for each commit that something is known of, and of bad ones those that come nearer.

    git takes a commit for what it was called last, and the last bad one for the nearest.
    """
    nearness = {name: place for place, name in enumerate(known)}
    called: set[str] = set()
    nearest = -1
    for answer in answers:
        name, said = str(answer.record.commit), answer.record.answer
        if name in called or said is not known.get(name, Answer.UNTESTABLE):
            continue
        if said is Answer.BAD and nearness[name] < nearest:
            continue
        nearest = nearness[name] if said is Answer.BAD else nearest
        called.add(name)
        yield answer


def _line(text: str) -> str:
    """Return ``text`` as a part of one line, which git could take for a command if it were not."""
    return " ".join(printable(text).split())


def is_weighed(answers: Sequence[Answered]) -> bool:
    """Whether a commit was asked about more than once, so that no single answer had to be believed."""
    return any(answer.record.repeat for answer in answers)


def posterior_answers(search_state: JournalState) -> Mapping[str, Answer]:
    """Return good or bad for each commit of which ``search_state`` is sure, those nearest to the change last.

    While the search has no answer, those are its ends as they were given.
    """
    pins, closing = search_state.begun.pins, search_state.closing
    sides = (("good", Answer.GOOD), ("bad", Answer.BAD))
    given = {pins[side]: answer for side, answer in sides if side in pins}
    if closing is None or not closing.lines:
        return given
    if closing.outcome == "no_culprit":
        return _along(closing.lines[0], len(closing.lines[0].places) - 1, len(closing.lines[0].places))
    return {} if closing.outcome == "ends_invalid" else _bounded(closing) or given


def _bounded(closing: Closing) -> dict[str, Answer]:
    """Return what is known along the line of the ends, then along what the merges at fault on the way brought in."""
    last_good, first_bad = closing.between
    at_fault, known = {first_bad}, []
    for line in reversed(closing.lines):
        places = [line.position[name] for name in at_fault if name in line.position]
        if not places:
            continue  # what this merge brought in is not at fault
        bad = min(places)
        known.append(_along(line, min(line.position.get(last_good, bad), bad - 1), bad))
        at_fault |= {line.merge} if line.merge else set()
    nearest_last: dict[str, Answer] = {}
    for each in reversed(known):
        for name, answer in each.items():
            nearest_last.pop(name, None)
            nearest_last[name] = answer
    return nearest_last


def _along(line: WalkedLine, good: int, bad: int) -> dict[str, Answer]:
    """Return the answers along ``line``: good up to one place, bad from another on, nothing in between."""
    places = [(name, place) for name, place in line.position.items() if name]
    before = {name: Answer.GOOD for name, place in places if place <= good}
    return before | {name: Answer.BAD for name, place in reversed(places) if place >= bad}
