from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.results.sections import LinePlace, WalkedLine
from oomscope.bisect.search.line import Answer, Search
from oomscope.report.search_status import Bracket, Standing, asked_on, bracket_of, standings
from tests.unit.report import searches


def line_of(last: int) -> WalkedLine:
    return WalkedLine(places=tuple(LinePlace(commit=f"{at:040d}", subject=f"{at}") for at in range(last + 1)))


def record(place: int, answer: Answer, role: str = "search"):
    return replace(searches.PROBES[0], commit=f"{place:040d}", answer=answer, role=role)


@st.composite
def lines(draw: st.DrawFn) -> tuple[int, int, frozenset[int]]:
    last = draw(st.integers(1, 60))
    culprit = draw(st.integers(1, last))
    return last, culprit, draw(st.frozensets(st.integers(1, max(1, last - 1)))) - {last}


@given(lines())
def test_the_bracket_is_that_of_the_search(drawn) -> None:
    last, culprit, broken = drawn
    line, search = line_of(last), Search.over(last)
    records = [record(0, Answer.GOOD, "good end"), record(last, Answer.BAD, "bad end")]
    while (wanted := search.wanted) is not None:
        answer = Answer.UNTESTABLE if wanted in broken else Answer.BAD if wanted >= culprit else Answer.GOOD
        records.append(record(wanted, answer))
        search = search.told(wanted, answer)
    asked = list(asked_on(line, records))
    bracket = bracket_of(asked)
    assert bracket == (search.good, search.bad)
    found = standings(line, asked, bracket)
    for place, standing in enumerate(found):
        if standing is Standing.OPEN:
            assert search.good < place < search.bad
        if standing in {Standing.BEFORE, Standing.GOOD}:
            assert place < culprit
        if standing in {Standing.AFTER, Standing.BAD}:
            assert place >= culprit


def test_probes_for_steps_leave_the_bracket_alone() -> None:
    records = [record(0, Answer.GOOD), record(9, Answer.BAD), record(4, Answer.BAD, "step")]
    asked = list(asked_on(line_of(9), records))
    assert bracket_of(asked) == Bracket(0, 9)
    assert standings(line_of(9), asked, Bracket(0, 9))[4] is Standing.BAD


def test_a_place_asked_several_times_has_the_answer_given_most_often() -> None:
    answers = [Answer.BAD, Answer.GOOD, Answer.GOOD]
    asked = list(asked_on(line_of(4), [record(2, answer) for answer in answers]))
    assert standings(line_of(4), asked, Bracket())[2] is Standing.GOOD


def test_what_is_not_on_the_line_is_passed_by() -> None:
    strange = replace(record(1, Answer.GOOD), commit="f" * 40)
    keys = replace(strange, commit=None, keys=("a",))
    assert list(asked_on(line_of(3), [strange, keys])) == []
    assert bracket_of([]) == Bracket(None, None)


def test_a_commit_that_measures_the_same_as_its_place_is_found_there() -> None:
    place = LinePlace(commit="a" * 40, subject="a", same=("b" * 40, "c" * 40))
    (asked,) = asked_on(WalkedLine(places=(place,)), [replace(record(0, Answer.BAD), commit="c" * 40)])
    assert (asked.place, place.commits) == (0, 3)
