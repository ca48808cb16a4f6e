"""A plan that knows all lifetimes lies between what is live at once and what was asked for in all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.lifetimes import Lifetimes
from oomscope.snapshot.replay import replay_table as plan
from oomscope.snapshot.replay.replay_table import planned_bytes

BLOCKS = st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 20), st.integers(1, 8)), max_size=25)


def lifetimes(*blocks: tuple[int, int, int]) -> Lifetimes:
    """Return blocks given as birth, death and units of 512 bytes."""
    born, gone, size = (
        np.array(column, dtype=np.int64) for column in (zip(*blocks, strict=True) if blocks else ((),) * 3)
    )
    nothing = np.zeros(len(born), dtype=np.int64)
    return Lifetimes(
        end=100,
        born=born,
        freed=gone,
        completed=gone,
        address=nothing.astype(np.uint64),
        size=size * 512,
        stream=nothing,
        segment_block=nothing - 1,
        inconsistent_events=np.zeros(0, dtype=np.int64),
    )


@given(BLOCKS)
def test_a_plan_is_between_the_live_peak_and_the_sum(blocks):
    spans = [(born, born + 1 + length, units) for born, length, units in blocks]
    planned = planned_bytes(lifetimes(*spans))
    live = [sum(units for born, gone, units in spans if born <= event < gone) for event in range(-1, 60)]
    assert max(live) * 512 <= planned <= sum(units for *_, units in spans) * 512


def test_a_hole_is_used_once_it_is_large_enough():
    assert planned_bytes(lifetimes((0, 9, 4), (0, 3, 2), (4, 9, 2))) == 6 * 512
    assert planned_bytes(lifetimes((0, 5, 4), (4, 9, 4))) == 8 * 512


def test_sizes_are_aligned_as_cuda_aligns_them():
    table = lifetimes((0, 5, 1), (0, 5, 1))
    table.size[:] = 100
    assert planned_bytes(table) == 1024


def test_nothing_takes_nothing():
    assert planned_bytes(lifetimes()) == 0
    assert planned_bytes(lifetimes((3, 3, 1))) == 0


def test_too_many_blocks_are_not_planned(monkeypatch):
    monkeypatch.setattr(plan, "MOST_BLOCKS", 1)
    assert planned_bytes(lifetimes((0, 5, 1), (0, 5, 1))) is None
