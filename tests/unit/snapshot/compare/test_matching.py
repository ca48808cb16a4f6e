"""Lines are found again by file, function, order and what they hold; never lost, never twice, in either direction."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.compare.alignment import Line, Use, align, same_lines
from oomscope.snapshot.compare.matching import Numbered, Place, pair_lines

CATEGORIES = ("activation", "gradient", "unknown")
uses = st.lists(
    st.builds(Use, st.sampled_from(CATEGORIES), st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=2
)
profiles = uses.map(lambda found: tuple(sorted({use.category: use for use in found}.values())))
places = st.builds(
    Place,
    st.sampled_from(("/a/repo/model.py", "/b/repo/model.py", "/b/other/model.py", "/a/repo/loss.py", "??", "")),
    st.sampled_from(("forward", "step", "<module>")),
    st.integers(0, 12),
)
programs = st.dictionaries(places, profiles, max_size=12)


def act(size: int, blocks: int = 1) -> tuple[Use, ...]:
    return (Use("activation", size, blocks),)


def moves(before, after, **texts) -> set[tuple[int | None, int | None]]:
    """Return the pairs of line numbers."""
    return {(old.line if old else None, new.line if new else None) for old, new in pair_lines(before, after, **texts)}


@given(programs, programs)
def test_every_line_is_there_once(before, after):
    pairs = pair_lines(before, after)
    assert Counter(old for old, _ in pairs if old) == Counter(before.keys())
    assert Counter(new for _, new in pairs if new) == Counter(after.keys())
    assert (None, None) not in pairs


@given(programs, programs)
def test_the_way_back_is_the_way_there(before, after):
    assert {(new, old) for old, new in pair_lines(after, before)} == set(pair_lines(before, after))


@given(programs)
def test_a_program_is_itself(program):
    assert set(pair_lines(program, program)) == {(place, place) for place in program}


@given(programs, st.integers(1, 40))
def test_lines_put_above_a_program_move_all_of_it(program, by):
    moved = {place._replace(line=place.line + by): profile for place, profile in program.items()}
    assert {(old, new._replace(line=new.line - by)) for old, new in pair_lines(program, moved)} == {
        (place, place) for place in program
    }


@given(programs, st.integers(1, 12), st.integers(1, 40))
def test_lines_put_into_a_program_lose_none_that_holds_more_than_it_did(program, above, by):
    """An edit inside a function moves what is below it, and everything may have doubled besides."""
    moved = {
        place._replace(line=place.line + (by if place.line >= above else 0)): tuple(
            use._replace(bytes=2 * use.bytes) for use in profile
        )
        for place, profile in program.items()
    }
    pairs = pair_lines(program, moved)
    assert all(old and new for old, new in pairs)
    assert all((old.file, old.function) == (new.file, new.function) for old, new in pairs)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_where_all_bytes_doubled_a_line_is_not_the_one_that_held_as_much_before(exponents):
    before = {Place("/r/m.py", "forward", 10 + line): act(2**size) for line, size in enumerate(exponents)}
    after = {Place("/r/m.py", "forward", 13 + line): act(2 ** (size + 1)) for line, size in enumerate(exponents)}
    assert moves(before, after) == {(10 + line, 13 + line) for line in range(len(exponents))}


def test_another_machine_is_another_path():
    before = {
        Place("/home/ada/job/train/model.py", "forward", 10): act(1),
        Place("/home/ada/model.py", "forward", 5): act(2),
    }
    after = {Place("/mnt/train/model.py", "forward", 12): act(7), Place("/mnt/model.py", "forward", 5): act(9)}
    assert moves(before, after) == {(10, 12), (5, 5)}


def test_files_of_one_name_are_told_apart_by_what_is_in_them():
    before = {Place("/a/model.py", "encode", 1): act(1), Place("/b/model.py", "decode", 2): act(2)}
    after = {Place("/c/model.py", "decode", 20): act(2), Place("/d/model.py", "encode", 10): act(1)}
    assert moves(before, after) == {(1, 10), (2, 20)}


def test_files_of_one_name_without_a_function_in_common_are_two():
    before = {Place("/a/__init__.py", "encode", 1): act(1)}
    after = {Place("/b/__init__.py", "decode", 2): act(1)}
    assert moves(before, after) == {(1, None), (None, 2)}


def test_a_renamed_file_is_known_by_its_functions_and_what_grew_in_it_is_found():
    before = {Place("/r/model.py", "forward", line): act(line) for line in (1, 2, 3)}
    after = {Place("/r/layers.py", "forward", line + 4): act(99 if line == 2 else line) for line in (1, 2, 3)}
    assert moves(before, after) == {(1, 5), (2, 6), (3, 7)}


def test_a_renamed_function_is_known_by_what_its_lines_hold():
    before = {Place("/r/model.py", "step", line): act(line) for line in (1, 2, 3)}
    after = {Place("/r/model.py", "train_step", line): act(99 if line == 2 else line) for line in (1, 2, 3)}
    assert moves(before, after) == {(1, 1), (2, 2), (3, 3)}


def test_a_line_that_changed_places_is_found_again():
    gradient = (Use("gradient", 2, 1),)
    before = {Place("/r/m.py", "forward", 1): act(1), Place("/r/m.py", "forward", 2): gradient}
    after = {Place("/r/m.py", "forward", 1): gradient, Place("/r/m.py", "forward", 2): act(1)}
    assert moves(before, after) == {(1, 2), (2, 1)}


def test_what_holds_other_things_elsewhere_is_another_line():
    before = {Place("/r/m.py", "step", 10): act(5)}
    after = {Place("/r/m.py", "step", 90): (Use("optimizer_state", 7, 3),)}
    assert moves(before, after) == {(10, None), (None, 90)}


def test_a_function_that_went_to_another_file_and_grew_is_found_by_two_of_its_lines():
    before = {Place("/r/model.py", "forward", line): act(10 * line, line) for line in (3, 5, 9)}
    kept = {Place("/r/model.py", "forward", 4): act(90, 9)}
    gone = {Place("/r/attention.py", "forward", line + 10): act(17 * line, line) for line in (3, 5)}
    assert moves(before, {**kept, **gone}) == {(3, 13), (5, 15), (9, 4)}
    alone = {Place("/r/attention.py", "forward", 13): act(51, 3)}
    assert moves(before, {**kept, **alone}) == {(3, None), (None, 13), (5, None), (9, 4)}


OLD = ["def forward(x):", "    y = a(x)", "    z = b(y)", "    return z"]
NEW = [
    "import os",
    "def forward(x):",
    "    if True:",
    "        y = a(x)",
    "    w = c(y)",
    "    z = b(w)",
    "    return z",
]


@pytest.mark.parametrize("turned", [False, True])
def test_texts_decide_where_they_are_at_hand(turned):
    """By size alone line 2 would be line 5, where its bytes have gone."""
    before = {Place("/r/m.py", "forward", 2): act(5), Place("/r/m.py", "forward", 3): act(6)}
    after = {Place("/q/m.py", "forward", line): act(size) for line, size in ((4, 1), (5, 5), (6, 6))}
    sides = (before, after, lambda file: OLD, lambda file: NEW)
    if turned:
        sides = (after, before, lambda file: NEW, lambda file: OLD)
    pairs = {tuple(sorted(place.line if place else 0 for place in pair)) for pair in pair_lines(*sides)}
    assert pairs == {(2, 4), (0, 5), (3, 6)}


def test_a_text_that_is_missing_on_one_side_decides_nothing():
    assert same_lines(OLD, None) is None
    assert same_lines(OLD, NEW) == {1: 2, 2: 4, 4: 7}
    assert same_lines(["x"] * 30_000, ["x"]) is None


def test_a_function_of_thousands_of_lines_is_paired_by_number():
    lines = [Line(number, act(number)) for number in range(3000)]
    assert align(lines, lines[:2000] + lines[2500:]) == [
        *((row, row) for row in range(2000)),
        *((row, row - 500) for row in range(2500, 3000)),
    ]


def test_lines_that_stand_where_they_stood_are_known_by_their_numbers():
    place = Place("/a/model.py", "forward", 39)
    before = {place: act(20)}
    after = {place: act(2000, 300), place._replace(line=54): act(20)}
    assert moves(before, after) == {(39, 54), (None, 39)}
    assert moves(before, after, unmoved=lambda *_: {Numbered(39, "forward")}) == {(39, 39), (None, 54)}
    gone = {place._replace(line=60): act(20)}
    assert moves(before, gone, unmoved=lambda *_: {Numbered(39, "forward")}) == {(39, None), (None, 60)}


@pytest.mark.parametrize("turned", [False, True])
def test_texts_are_heard_before_numbers(turned):
    """All lines have numbers of the other side's, and each is its neighbour there."""
    sides = (
        [(Place("/r/m.py", "forward", line), size) for line, size in ((10, 300), (11, 200), (12, 100))],
        [(Place("/r/m.py", "forward", line), size) for line, size in ((10, 77), (11, 300), (12, 200), (13, 100))],
    )
    before, after = ({place: act(size) for place, size in side} for side in sides)
    old = [*(["import os"] * 9), "q = query(x)", "k = key(x)", "v = value(x)"]
    new = [*old[:9], "x = norm(x)", *old[9:]]
    found = {(10, 11), (11, 12), (12, 13), (None, 10)}
    if turned:
        before, after, old, new, found = after, before, new, old, {(there, here) for here, there in found}
    texts = {"before_text": lambda file: old, "after_text": lambda file: new}
    known = {Numbered(line, "forward") for line in (10, 11, 12)}
    assert moves(before, after, **texts, unmoved=lambda *_: known) == found


def test_a_line_that_holds_most_of_what_it_held_stays_where_a_line_above_it_begins_to_allocate():
    """Without texts, that lines stand next to each other says less than what they hold."""
    saved, scratch = Use("activation", 160, 5), Use("temporary", 32, 1)
    before = {
        Place("m.py", "forward", 11): (*act(8, 2), scratch),
        Place("m.py", "forward", 14): (saved, scratch),
        Place("m.py", "forward", 15): act(4),
    }
    after = {
        Place("m.py", "forward", 11): (scratch,),
        Place("m.py", "forward", 13): (Use("temporary", 64, 2),),
        Place("m.py", "forward", 14): (saved,),
    }
    assert moves(before, after) == {(11, 11), (14, 14), (15, None), (None, 13)}
    assert moves(after, before) == {(11, 11), (14, 14), (None, 15), (13, None)}
