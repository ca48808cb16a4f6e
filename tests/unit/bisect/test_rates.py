"""What is believed of a rate agrees with Beta distributions worked out by hand."""

from __future__ import annotations

import math

import pytest

from oomscope.bisect.search.posterior import NEVER_WRONG, Prior, mixed_rate

UNIFORM = Prior(wrong=1, right=1)


def test_a_sequence_is_weighed_with_the_rate_integrated_out() -> None:
    assert UNIFORM.log_likelihood(1, 2) == pytest.approx(math.log(1 / 12)), "the integral of x (1 - x)^2"
    assert UNIFORM.mean(1, 2) == pytest.approx(2 / 5)


def test_what_is_never_wrong_cannot_have_been_wrong() -> None:
    assert NEVER_WRONG.log_likelihood(1, 5) == -math.inf
    assert NEVER_WRONG.log_likelihood(0, 5) == 0
    assert NEVER_WRONG.mean(0, 5) == 0
    assert mixed_rate(NEVER_WRONG, [(1.0, 0, 3)]).high == 0


@pytest.mark.parametrize("right", [0, 1, 20, 200, 1000, 4000, 100_000])
def test_the_interval_of_answers_that_were_all_right_is_exact(right: int) -> None:
    rate = mixed_rate(Prior(), [(1.0, 0, right)])
    shape = 6 + right  # Beta(1, shape): P(x > t) = (1 - t)^shape
    exact = [-math.expm1(math.log(share) / shape) for share in (0.975, 0.025)]
    assert (rate.low, rate.high) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("wrong", [0, 1, 20, 1000])
def test_the_interval_of_answers_that_were_all_wrong_is_exact(wrong: int) -> None:
    rate = mixed_rate(UNIFORM, [(1.0, wrong, 0)])  # Beta(shape, 1): P(x < t) = t^shape
    exact = [share ** (1 / (1 + wrong)) for share in (0.025, 0.975)]
    assert (rate.mean, rate.low, rate.high) == pytest.approx(((1 + wrong) / (2 + wrong), *exact), rel=1e-4)


def test_the_interval_of_many_answers_of_both_kinds_is_that_of_a_normal_law() -> None:
    rate = mixed_rate(UNIFORM, [(1.0, 1000, 1000)])
    width = 1.95996 * math.sqrt(0.25 / 2003)
    assert (rate.low, rate.high) == pytest.approx((0.5 - width, 0.5 + width), abs=1e-4)


def test_uncertain_cases_are_mixed() -> None:
    few, many = mixed_rate(UNIFORM, [(1.0, 0, 20)]), mixed_rate(UNIFORM, [(1.0, 20, 0)])
    both = mixed_rate(UNIFORM, [(0.5, 0, 20), (0.5, 20, 0)])
    assert both.mean == pytest.approx(0.5)
    assert both.low < few.high < many.low < both.high
