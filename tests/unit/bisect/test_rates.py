"""What is believed of a rate agrees with Beta distributions worked out by hand."""

from __future__ import annotations

import math

import pytest

from oomscope.bisect.rates import NEVER_WRONG, Prior, mixed_rate

UNIFORM = Prior(wrong=1, right=1)


def test_a_sequence_is_weighed_with_the_rate_integrated_out() -> None:
    assert UNIFORM.log_likelihood(1, 2) == pytest.approx(math.log(1 / 12)), "the integral of x (1 - x)^2"
    assert UNIFORM.mean(1, 2) == pytest.approx(2 / 5)


def test_what_is_never_wrong_cannot_have_been_wrong() -> None:
    assert NEVER_WRONG.log_likelihood(1, 5) == -math.inf
    assert NEVER_WRONG.log_likelihood(0, 5) == 0
    assert NEVER_WRONG.mean(0, 5) == 0
    assert mixed_rate(NEVER_WRONG, [(1.0, 0, 3)]).high == 0


def test_the_interval_of_one_case_is_that_of_its_beta_distribution() -> None:
    rate = mixed_rate(UNIFORM, [(1.0, 0, 0)])
    assert (rate.mean, rate.low, rate.high) == pytest.approx((0.5, 0.025, 0.975), abs=1e-3)
    rate = mixed_rate(UNIFORM, [(1.0, 0, 3)])  # Beta(1, 4): P(x > t) = (1 - t)^4
    assert (rate.low, rate.high) == pytest.approx((1 - 0.975**0.25, 1 - 0.025**0.25), abs=1e-3)


def test_uncertain_cases_are_mixed() -> None:
    few, many = mixed_rate(UNIFORM, [(1.0, 0, 20)]), mixed_rate(UNIFORM, [(1.0, 20, 0)])
    both = mixed_rate(UNIFORM, [(0.5, 0, 20), (0.5, 20, 0)])
    assert both.mean == pytest.approx(0.5)
    assert both.low < few.high < many.low < both.high
