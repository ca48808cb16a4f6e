"""The measured spread and Student's quantiles agree with tables and with the statistics module."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.bisect.search.measured import Bytes
from oomscope.bisect.search.spread import ProbeSpread, mean, student


def sample(*live: int) -> tuple[Bytes, ...]:
    return tuple(Bytes(requested_bytes=value, reserved_bytes=2 * value) for value in live)


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.99, 5, 4.032), (0.999, 8, 5.041), (0.95, 10_000, 1.960)],
)
def test_students_quantiles_are_those_of_the_tables(confidence: float, freedom: int, quantile: float) -> None:
    assert student(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


def test_one_position_has_its_standard_deviation() -> None:
    spread = ProbeSpread.of([sample(10, 14, 19), sample(1000)])
    assert spread.requested_bytes == pytest.approx(statistics.stdev([10, 14, 19]))
    assert spread.overhead_bytes == pytest.approx(spread.requested_bytes)
    assert spread.freedom == 2


def test_positions_are_pooled_whatever_their_levels() -> None:
    spread = ProbeSpread.of([sample(10, 14), sample(1010, 1014), sample(7, 7, 7)])
    assert spread.requested_bytes == pytest.approx((16 / 4) ** 0.5)
    assert spread.freedom == 4


def test_without_a_repeat_nothing_stands_clear() -> None:
    limit = ProbeSpread.of([sample(1), sample(10**15)]).limit(1, 0.95)
    assert not limit.is_exceeded_by(Bytes(requested_bytes=10**15))


def test_no_spread_lets_every_byte_stand_clear() -> None:
    assert ProbeSpread.of([sample(5, 5)]).limit(1, 0.99).is_exceeded_by(Bytes(requested_bytes=1, reserved_bytes=1))


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=9))
def test_the_mean_lies_among_the_measurements(live: list[int]) -> None:
    assert min(live) <= mean(sample(*live)).requested_bytes <= max(live)


def test_equal_positions_exceed_the_limit_as_rarely_as_promised() -> None:
    rng = random.Random(1)
    exceeded = 0
    for _ in range(2000):
        first, second = (sample(*(round(rng.gauss(10**6, 1000)) for _ in range(3))) for _ in range(2))
        limit = ProbeSpread.of([first, second]).limit(3, 0.9)
        exceeded += abs((mean(first) - mean(second)).requested_bytes) > limit.requested_bytes
    assert 0.08 < exceeded / 2000 < 0.12
