"""A line is known by its number where the stacks of both recordings leave it nowhere else to stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.builder import TraceBuilder
from oomscope.snapshot.compare import matching as room
from oomscope.snapshot.compare.diff import Named, diff
from oomscope.snapshot.compare.matching import unmoved
from oomscope.snapshot.trace import Action, Frame, Snapshot, Trace

FILE = "/a/model.py"


def recorded(lines, sizes=None, file: str = FILE) -> Trace:
    """Return a trace that allocates in each line; a line is a number, of ``forward``, or a function and a number."""
    builder = TraceBuilder(0)
    for row, line in enumerate(lines):
        function, number = line if isinstance(line, tuple) else ("forward", line)
        size = sizes[row] if sizes else 1
        builder.event(Action.ALLOC, 0x7F00_0000_0000 + row * 2**32, size, stack=(Frame(file, number, function),))
    return builder.build()


def known(before, after) -> set[int]:
    """Return the lines that are known by their numbers; the way back must tell the same."""
    there, back = unmoved(recorded(before), recorded(after)), unmoved(recorded(after), recorded(before))
    assert there(FILE, FILE) == back(FILE, FILE)
    assert not there(FILE, "/a/other.py")
    return {line.line for line in there(FILE, FILE)}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param((10, 20, 30), (10, 20, 30), {10, 20, 30}, id="the same lines"),
        pytest.param((10, 11, 12), (10, 11, 12), {10, 11, 12}, id="the same lines, one below the other"),
        pytest.param((10, 20, 30), (10, 20, 31), set(), id="one of them elsewhere"),
        pytest.param((10, 20, 30), (11, 21, 31), set(), id="all of them elsewhere"),
        pytest.param((10, 20), (10, 20), set(), id="too few to tell"),
        pytest.param((10, 20, 30), (10, 20, 30, 45), {10, 20}, id="the last one may have moved"),
        pytest.param((10, 25, 30), (7, 10, 25, 30), {25, 30}, id="the first one may have moved"),
        pytest.param((10, 15, 40, 60), (10, 15, 21, 40, 60), {10, 60}, id="either neighbour may have moved"),
        pytest.param((10, 11, 12), (10, 11, 12, 13), set(), id="a line above three in a row"),
        pytest.param((10, 11, 12, 40, 61), (10, 11, 12, 13, 40, 61), {61}, id="and a line less behind them"),
        pytest.param((10, 20, 30, ("step", 40)), (10, 20, 30, ("step", 40), ("step", 45)), {10, 20, 30}, id="below"),
        pytest.param((10, 20, 30), (10, 20, 30, ("step", 45)), {10, 20, 30}, id="a further function"),
        pytest.param((10, 20, 30), (10, 20, 30, ("<listcomp>", 20)), {10, 20, 30}, id="a function in the same line"),
    ],
)
def test_what_fits_no_move_is_known_by_its_number(before, after, same):
    assert known(before, after) == same


@given(st.sets(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 40), st.integers(1, 5), st.integers(1, 40))
def test_no_line_that_an_edit_moved_is_known_by_its_number(lines, above, by, added):
    """An edit puts ``by`` lines in above one of them and, it may be, a line that allocates as well."""
    moved = {line + by if line >= above else line for line in lines}
    assert not {line for line in known(lines, moved) if line >= above}
    assert not {line for line in known(lines, moved | {added}) if line >= above}


def test_a_file_of_very_many_lines_tells_nothing(monkeypatch):
    assert known(range(0, 50, 5), (*range(0, 50, 5), 61)) == set(range(0, 45, 5))
    monkeypatch.setattr(room, "MOST_MOVES", 9)
    assert known(range(0, 50, 5), (*range(0, 50, 5), 61)) == set()


def snapshot(lines, sizes) -> Snapshot:
    return Snapshot(segments=(), traces=(recorded(lines, sizes),))


@pytest.mark.parametrize("texts", [False, True], ids=["stacks alone", "both texts"])
def test_allocating_lines_below_a_new_one_keep_their_bytes(texts):
    """Each of three lines in a row stands where another one stood; a row is told by what it holds, or by its text."""
    old = [*(["import os"] * 9), "q = query(x)", "k = key(x)", "v = value(x)"]
    new = [*old[:9], "x = norm(x)", *old[9:]]
    before = snapshot((10, 11, 12), (300, 200, 100))
    after = snapshot((10, 11, 12, 13), (77, 300, 200, 100))
    sides = Named("a", before), Named("b", after)
    if texts:
        sides = Named("a", before, lambda file: old), Named("b", after, lambda file: new)
    rows = diff(*sides).devices[0].lines
    assert {(row.was and row.was.line, row.site.line, row.delta_bytes, row.presence) for row in rows} == {
        (None, 10, 77, "new"),
        (10, 11, 0, "both"),
        (11, 12, 0, "both"),
        (12, 13, 0, "both"),
    }
