"""What a search is sure of in the end follows from where along its lines the change lies."""

from __future__ import annotations

import pytest

from oomscope.bisect.journal.git_log import is_weighed, posterior_answers
from oomscope.bisect.journal.journal_state import Closing, JournalState
from oomscope.bisect.results.sections import LinePlace, WalkedLine
from oomscope.bisect.search.line import Answer
from tests.unit.bisect.test_account import answered, begun

G, B = Answer.GOOD, Answer.BAD


def line(names: str, merge: str | None = None) -> WalkedLine:
    """Return a line whose commits are called by one letter each; ``M`` measures the same as its neighbour ``m``."""
    places = (LinePlace(commit=name, subject="", same=("M",) if name == "m" else ()) for name in names)
    return WalkedLine(places=tuple(places), merge=merge)


def ended(outcome: str, *lines: WalkedLine, between: tuple[str, str] = ("", "")) -> JournalState:
    closing = Closing(outcome=outcome, message="", lines=lines, between=between)
    return JournalState(begun=begun(pins={"good": "a", "bad": "e"}), closing=closing)


@pytest.mark.parametrize(
    ("account", "known"),
    [
        (ended("culprit", line("abcde"), between=("b", "c")), {"a": G, "b": G, "e": B, "d": B, "c": B}),
        (ended("suspects", line("abcde"), between=("b", "d")), {"a": G, "b": G, "e": B, "d": B}),
        (ended("culprit", line("abme"), between=("b", "m")), {"a": G, "b": G, "e": B, "M": B, "m": B}),
        (ended("no_culprit", line("abc")), {"a": G, "b": G, "c": G}),
        (ended("ends_invalid", line("abc")), {}),
        (ended("suspects", line("abc")), {"a": G, "e": B}),
        (ended("stopped"), {"a": G, "e": B}),
        (JournalState(begun=begun(pins={})), {}),
        (
            ended("culprit", line("abme"), line("axym", "m"), between=("x", "y")),
            {"b": G, "e": B, "a": G, "x": G, "M": B, "m": B, "y": B},
        ),
        (
            ended("culprit", line("abme"), line("apqb", "b"), between=("b", "m")),
            {"a": G, "b": G, "e": B, "M": B, "m": B},
        ),
    ],
)
def test_before_the_change_is_good_and_from_it_on_bad(account: JournalState, known: dict[str, Answer]) -> None:
    assert list(posterior_answers(account).items()) == list(known.items()), "those nearest to the change come last"


def test_answers_are_weighed_where_one_was_asked_for_again() -> None:
    assert not is_weighed([answered(1), answered(2)])
    assert is_weighed([answered(1), answered(1, repeat=1)])
