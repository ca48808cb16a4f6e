"""What is known of a search while it runs, and how it is shown on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from oomscope.bisect.results.reporter import RunningProbe, SearchPlan
from oomscope.bisect.results.sections import LinePlace, WalkedLine
from oomscope.bisect.search.line import Answer, Search
from oomscope.probe.job import Progress
from oomscope.report.commands.search_status import (
    Bracket,
    PlaceState,
    asked_on,
    bracket_of,
    place_states,
    probes_left,
    seconds_left,
)
from oomscope.report.text.live import RUNNING, Strip, Watched, live_view
from oomscope.report.text.ticker import rounded_text
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
        search = search.with_answer(wanted, answer)
    asked = list(asked_on(line, records))
    bracket = bracket_of(asked)
    assert bracket == (search.good, search.bad)
    found = place_states(line, asked, bracket)
    for place, state in enumerate(found):
        if state is PlaceState.OPEN:
            assert search.good < place < search.bad
        if state in {PlaceState.BEFORE, PlaceState.GOOD}:
            assert place < culprit
        if state in {PlaceState.AFTER, PlaceState.BAD}:
            assert place >= culprit


def test_probes_for_steps_leave_the_bracket_alone() -> None:
    records = [record(0, Answer.GOOD), record(9, Answer.BAD), record(4, Answer.BAD, "step")]
    asked = list(asked_on(line_of(9), records))
    assert bracket_of(asked) == Bracket(0, 9)
    assert place_states(line_of(9), asked, Bracket(0, 9))[4] is PlaceState.BAD


def test_a_place_asked_several_times_has_the_answer_given_most_often() -> None:
    answers = [Answer.BAD, Answer.GOOD, Answer.GOOD]
    asked = list(asked_on(line_of(4), [record(2, answer) for answer in answers]))
    assert place_states(line_of(4), asked, Bracket())[2] is PlaceState.GOOD


def test_a_commit_that_measures_the_same_as_its_place_is_found_there() -> None:
    place = LinePlace(commit="a" * 40, subject="a", same=("b" * 40, "c" * 40))
    (asked,) = asked_on(WalkedLine(places=(place,)), [replace(record(0, Answer.BAD), commit="c" * 40)])
    assert (asked.place, place.commits) == (0, 3)


def plan_of(last: int, **fields) -> SearchPlan:
    at_most = 2 + Search.over(last).probes_left
    plan = SearchPlan(title="t", good="a", bad="b", candidates=last, considered=last, probes_at_most=at_most)
    return replace(plan, line=line_of(last), **fields)


def text_of(watched: Watched, now: float = 0.0, *, width: int = 100, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, color_system=None, legacy_windows=False).print(live_view(watched, now))
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


@settings(max_examples=30)
@given(st.integers(1, 70), st.data())
def test_no_more_probes_are_needed_than_are_announced(last: int, data) -> None:
    culprit = data.draw(st.integers(1, last))
    plan, search = plan_of(last), Search.over(last)
    records = [record(0, Answer.GOOD, "good end"), record(last, Answer.BAD, "bad end")]
    said = []
    while (place := search.wanted) is not None:
        asked = list(asked_on(plan.line, records))
        said.append(probes_left(plan, records, asked, bracket_of(asked)))
        assert said[-1] <= search.probes_left
        records.append(record(place, Answer.BAD if place >= culprit else Answer.GOOD))
        search = search.with_answer(place, records[-1].answer)
    assert all(left >= needed for left, needed in zip(said, range(len(said), 0, -1), strict=True))
    asked = list(asked_on(plan.line, records))
    assert probes_left(plan, records, asked, bracket_of(asked)) is None


def test_time_is_estimated_from_probes_that_really_ran() -> None:
    slow = replace(searches.PROBES[0], wall_s=10.0)
    cached = replace(slow, cached=True, wall_s=0.0)
    assert seconds_left(4, [cached], 0.0) is None
    assert seconds_left(None, [slow], 0.0) is None
    assert seconds_left(4, [slow, cached, slow], 4.0) == 36.0
    assert seconds_left(1, [slow], 99.0) == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (37, "35 s"), (61, "1 min 0 s"), (4000, "1 h 6 min")])
def test_an_estimate_is_no_more_exact_than_it_can_be(seconds: float, text: str) -> None:
    assert rounded_text(seconds) == text


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 120), st.data())
def test_a_strip_is_as_wide_as_its_room_and_hides_no_running_probe(last: int, width: int, data) -> None:
    line = line_of(last)
    places = data.draw(st.lists(st.integers(0, last), max_size=6))
    asked = list(asked_on(line, [record(place, data.draw(st.sampled_from(Answer))) for place in places]))
    running = data.draw(st.lists(st.integers(0, last), max_size=2))
    cells = Strip(line, asked, bracket_of(asked), running).cells(width)
    assert len(cells) == width
    assert (RUNNING in cells) == bool(running)
    if asked and not running and last < width:
        shown = {each.record.answer.value for each in asked} & {cell.value for cell in cells}
        assert shown


def test_the_view_of_a_search_side_by_side() -> None:
    plan = plan_of(8)
    records = (record(0, Answer.GOOD, "good end"), record(8, Answer.BAD, "bad end"), record(4, Answer.GOOD))
    running = (
        RunningProbe(slot=0, label=f"{6:010d} six", is_asked=True, progress=Progress(stage="step", done=1, total=2)),
        RunningProbe(slot=1, label=f"{7:010d} seven", is_asked=False),
    )
    line = replace(
        plan.line, places=tuple(replace(place, commit=place.commit[30:] + "0" * 30) for place in plan.line.places)
    )
    records = tuple(replace(each, commit=each.commit[30:] + "0" * 30, wall_s=6.0) for each in records)
    watched = Watched(
        plan=replace(plan, line=line), records=records, asked="six", running=running, since=((0, 2.0), (1, 5.0))
    )
    assert text_of(watched, 6.0, width=36) == [
        "··✓···············✓·━━━━━━▸━━━▸━··✗·",
        "at fault is one of 4 commits: after ",
        "3 probes done, at most 2 more, about",
        "1  probe 4, step 1 of 2, 4 s: 000000",
        "2  ahead, 1 s: 0000000007 seven",
    ]
    assert "about 8 s for all of them" in text_of(watched, 6.0)[2]
    assert text_of(watched, 6.0, width=36, encoding="ascii")[0].isascii()


def test_a_second_plan_counts_from_where_it_was_made() -> None:
    sought = (record(9, Answer.BAD, "bad end"), record(3, Answer.BAD, "good end sought"), record(0, Answer.GOOD))
    first = replace(plan_of(9), line=None, probes_at_most=7)
    seeking = Watched(plan=first, records=tuple(replace(each, wall_s=0.0, outcome=None) for each in sought[:1]))
    assert text_of(seeking) == ["1 probe done, at most 6 more"]
    searching = Watched(plan=plan_of(9), records=tuple(replace(each, outcome=None) for each in sought), planned_at=3)
    strip, range_, done = text_of(searching)
    assert strip.count("✗") == 2
    assert "one of 3 commits" in range_
    assert done == "3 probes done, at most 2 more", "what was answered on the way is known"
