"""Minimal sets against brute force, with changes that are invalid without others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.bisect.search.deltas import Changes, minimal_set, units_of
from oomscope.bisect.search.line import Answer


def always(changes: Changes) -> bool:
    return True


def singles(count: int) -> list[Changes]:
    return [frozenset({change}) for change in range(count)]


def drive(
    units: list[Changes], answer: Callable[[Changes], Answer], is_valid: Callable[[Changes], bool] = always
) -> tuple[list[Changes], list[Changes]]:
    """Return what is found, and what was asked on the way."""
    asked: list[Changes] = []
    questions = minimal_set(units, is_valid)
    try:
        question = next(questions)
        while True:
            assert is_valid(question), "invalid sets are never asked about"
            asked.append(question)
            question = questions.send(answer(question))
    except StopIteration as stop:
        return stop.value, asked


def search(
    units: list[Changes], is_bad: Callable[[Changes], bool], is_valid: Callable[[Changes], bool] = always
) -> tuple[list[Changes], list[Changes]]:
    return drive(units, lambda changes: Answer.BAD if is_bad(changes) else Answer.GOOD, is_valid)


@given(st.integers(1, 30), st.data())
def test_finds_the_interacting_set_and_nothing_else(count: int, data: st.DataObject) -> None:
    guilty = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))
    found, _ = search(singles(count), guilty.issubset)
    assert frozenset().union(*found) == guilty
    assert [min(unit) for unit in found] == sorted(guilty)


@given(st.integers(1, 8), st.data())
def test_of_several_causes_one_is_found_whole(count: int, data: st.DataObject) -> None:
    causes = data.draw(
        st.lists(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3), min_size=1, max_size=3)
    )

    def is_bad(changes: Changes) -> bool:
        return any(cause <= changes for cause in causes)

    found, _ = search(singles(count), is_bad)
    together = frozenset[int]().union(*found)
    assert is_bad(together)
    for size in range(len(together)):
        for fewer in combinations(together, size):
            assert not is_bad(frozenset(fewer))


def valid_where(needs: dict[int, set[int]]) -> Callable[[Changes], bool]:
    return lambda changes: all(needs.get(change, set()) <= changes for change in changes)


def test_keys_that_need_each_other_are_one_unit_and_prerequisites_come_first() -> None:
    # 0 needs 5; 2, 3 and 4 need one another.
    is_valid = valid_where({0: {5}, 2: {3, 4}, 3: {2}, 4: {2}})
    assert units_of(6, is_valid) == [
        frozenset({1}),
        frozenset({5}),
        frozenset({0}),
        frozenset({2, 3, 4}),
    ]


@settings(max_examples=200)
@given(st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 7), max_size=2), max_size=5), st.data())
def test_the_set_found_is_valid_bad_and_minimal_among_valid_ones(
    needs: dict[int, set[int]], data: st.DataObject
) -> None:
    is_valid = valid_where(needs)
    guilty = data.draw(st.frozensets(st.integers(0, 7), min_size=1, max_size=3))
    found, _ = search(units_of(8, is_valid), guilty.issubset, is_valid)
    together = frozenset[int]().union(*found)
    assert guilty <= together
    for unit in found:
        left = together - unit
        assert not (is_valid(left) and guilty <= left)


@settings(max_examples=300)
@given(st.integers(1, 6), st.data())
def test_where_changes_hide_others_the_set_found_is_bad_and_no_part_of_it_was_seen_to_be(
    count: int, data: st.DataObject
) -> None:
    """Any answers at all, such as those where one change saves the memory that another takes."""
    some = st.sets(st.frozensets(st.integers(0, count - 1), min_size=1), max_size=2 * count)
    everything = frozenset(range(count))
    bad, untestable = data.draw(some) | {everything}, data.draw(some)

    def answer(changes: Changes) -> Answer:
        if changes in bad:
            return Answer.BAD
        return Answer.UNTESTABLE if changes in untestable else Answer.GOOD

    found, asked = drive(singles(count), answer)
    together = frozenset[int]().union(*found)
    assert together in bad
    assert not any(changes < together for changes in asked if changes in bad)
    for unit in found:
        assert together - unit not in bad, "none can be left out"


def test_a_change_that_was_needed_only_beside_one_that_saves_is_left_out() -> None:
    """1 is bad alone; 0 saves what makes it fit, and 2 undoes that. The search begins with 0."""
    takes = {0: -1, 1: 2, 2: 1}
    found, asked = search(singles(3), lambda changes: sum(takes[change] for change in changes) >= 2)
    assert found == [frozenset({1})]
    assert len(set(asked)) == 6


def test_changes_that_no_answer_distinguishes_are_one_unit() -> None:
    """Whatever has 2 to 4 of the changes crashes, so that the last four cannot be told apart."""

    def answer(changes: Changes) -> Answer:
        if len(changes) in {2, 3, 4}:
            return Answer.UNTESTABLE
        return Answer.BAD if {0, 4} <= changes else Answer.GOOD

    found, _ = drive(singles(6), answer)
    assert found == [frozenset({0}), frozenset({1, 2, 3, 4})]
