"""Lines are found again by file, function, order and what they hold; never lost, never twice, in either direction."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.compare.matching import Place, Use, pair_lines, unchanged
from oomscope.snapshot.trace import Action, Frame, Snapshot, Trace
from tests.trace_builder import TraceBuilder

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


def test_another_machine_is_another_path():
    before = {
        Place("/home/ada/job/train/model.py", "forward", 10): act(1),
        Place("/home/ada/model.py", "forward", 5): act(2),
    }
    after = {Place("/mnt/train/model.py", "forward", 12): act(7), Place("/mnt/model.py", "forward", 5): act(9)}
    assert moves(before, after) == {(10, 12), (5, 5)}


def test_files_of_one_name_are_distinguished_by_content():
    before = {Place("/a/model.py", "encode", 1): act(1), Place("/b/model.py", "decode", 2): act(2)}
    after = {Place("/c/model.py", "decode", 20): act(2), Place("/d/model.py", "encode", 10): act(1)}
    assert moves(before, after) == {(1, 10), (2, 20)}


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


def test_a_renamed_function_is_known_by_its_text():
    old, new = ["def step(x):", "    y = a(x)"], ["import os", "def train_step(x):", "    y = a(x)"]
    before, after = {Place("/r/m.py", "step", 2): act(5)}, {Place("/r/m.py", "train_step", 3): act(7)}
    assert moves(before, after, before_text=lambda file: old, after_text=lambda file: new) == {(2, 3)}


def test_lines_of_an_unchanged_file_are_known_by_their_numbers():
    place = Place("/a/model.py", "forward", 39)
    before = {place: act(20)}
    after = {place: act(2000, 300), place._replace(line=54): act(20)}
    assert moves(before, after) == {(39, 54), (None, 39)}
    assert moves(before, after, unchanged=lambda *_: True) == {(39, 39), (None, 54)}
    gone = {place._replace(line=60): act(20)}
    assert moves(before, gone, unchanged=lambda *_: True) == {(39, None), (None, 60)}


def recorded(lines, sizes=()) -> Trace:
    """Return a trace that allocates in each line of one file."""
    builder = TraceBuilder(0)
    for row, line in enumerate(lines):
        size = sizes[row] if sizes else 1
        builder.event(Action.ALLOC, 2**40 + row * 2**32, size, stack=(Frame("/a/model.py", line, "forward"),))
    return builder.build()


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param((10, 20, 30), (10, 20, 30), True, id="the same lines"),
        pytest.param((10, 20, 30), (10, 20, 31), False, id="one of them elsewhere"),
        pytest.param((10, 20, 30), (10, 20, 30, 45), False, id="one more"),
        pytest.param((10, 20), (10, 20), False, id="too few to tell"),
    ],
)
def test_a_file_of_which_both_recordings_name_the_same_lines_is_unchanged(before, after, same):
    assert unchanged(recorded(before), recorded(after))("/a/model.py", "/a/model.py") is same


def test_allocating_lines_below_a_new_one_keep_their_bytes():
    """Each of three lines in a row stands where another one stood; a row is told by what it holds."""
    before = Snapshot(segments=(), traces=(recorded((10, 11, 12), (300, 200, 100)),))
    after = Snapshot(segments=(), traces=(recorded((10, 11, 12, 13), (77, 300, 200, 100)),))
    rows = diff(Named("a", before), Named("b", after)).devices[0].lines
    assert {(row.was and row.was.line, row.site.line, row.delta_bytes, row.presence) for row in rows} == {
        (None, 10, 77, "new"),
        (10, 11, 0, "both"),
        (11, 12, 0, "both"),
        (12, 13, 0, "both"),
    }
