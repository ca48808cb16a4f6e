"""What a search that weighed its answers believes of each commit in the end: pure.

Such a search asks about a commit several times, and some answers are wrong. What counts is where along the lines that
it walked the change lies: what is before it is good, and what is from it on is bad, whatever single probes said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from oomscope.bisect.account import Account, Closing
from oomscope.bisect.journal import Answered
from oomscope.bisect.search import Answer
from oomscope.bisect.walked_lines import WalkedLine


def is_weighed(answers: Sequence[Answered]) -> bool:
    """Whether a commit was asked about more than once, so that no single answer had to be believed."""
    return any(answer.record.repeat for answer in answers)


def believed(account: Account) -> Mapping[str, Answer]:
    """Return good or bad for each commit of which the search of ``account`` is sure, those nearest to the change last.

    While the search has no answer, those are its ends as they were given.
    """
    pins, closing = account.begun.pins, account.closing
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
