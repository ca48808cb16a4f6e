from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.results.result import StepRow
from oomscope.bisect.search.measured import Bytes
from oomscope.report.rows import folded
from oomscope.units import MiB


def steps(*sizes: int) -> list[StepRow]:
    return [
        StepRow(
            commit=f"{number:040}", label="", commits=number + 1, delta=Bytes(requested_bytes=size, reserved_bytes=size)
        )
        for number, size in enumerate(sizes)
    ]


def test_rows_without_a_change_are_one_row_at_the_end() -> None:
    rows = steps(0, 7, 0, -2, 0)
    assert [row.delta.requested_bytes for row in folded(rows)] == [7, -2, 0]
    assert folded(rows)[-1].label == "no change: 3 further rows, over 9 commits"


def test_the_culprit_keeps_its_row_and_a_single_one_is_left_alone() -> None:
    rows = steps(0, 0, 5)
    assert folded(rows, rows[1].commit) == tuple(rows)
    assert folded(rows[1:]) == tuple(rows[1:])


@given(st.lists(st.sampled_from([0, 0, 3, -4]), max_size=12))
def test_the_rows_still_sum(sizes: list[int]) -> None:
    after = folded(steps(*sizes))
    assert sum((row.delta for row in after), start=Bytes()) == sum((row.delta for row in steps(*sizes)), start=Bytes())
    assert sum(row.delta == Bytes() for row in after) <= 1


def test_steps_of_a_few_bytes_are_no_rows_beside_large_ones() -> None:
    rows = steps(512, 64 * MiB, -2048, 100)
    after = folded(rows)
    assert [row.delta.requested_bytes for row in after] == [64 * MiB, 512 - 2048 + 100]
    assert after[-1].label == "at most 655.36 KiB each: 3 further rows, over 8 commits"
    assert folded(steps(512, 2048)) == tuple(steps(512, 2048))
