"""A period is found through noise, and none where there is no repetition; few lags are counted for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomscope.snapshot.infer.iterations import COUNTED, MIN_PERIOD, READINGS, likely_lags, period_of


@given(st.lists(st.integers(0, 30), min_size=MIN_PERIOD, max_size=40), st.integers(2, 6), st.integers(0, 7))
def test_the_period_of_a_repeated_sequence_divides_it(once, times, offset):
    sequence = np.array(once * times)[offset % len(once) :]
    if len(sequence) < 2 * len(once):
        return
    by_chance = sum(np.mean(sequence == kind) ** 2 for kind in set(once))
    needed = max(0.95, (1 + by_chance) / 2)
    agrees = [lag for lag in range(1, len(once) + 1) if np.mean(sequence[:-lag] == sequence[lag:]) >= needed]
    assert period_of(sequence) == (agrees[0] if agrees[0] >= MIN_PERIOD else None)


@given(st.integers(0, 1000))
def test_a_sequence_without_repetition_has_no_period(seed):
    assert period_of(np.random.default_rng(seed).permutation(200)) is None


@pytest.mark.parametrize("share", [0.9, 0.974, 0.999])
def test_a_sequence_that_is_mostly_one_kind_has_no_period_by_chance(share):
    others = np.random.default_rng(1).random(20_000) > share
    assert period_of(others.astype(np.int64)) is None


def test_few_lags_are_counted_however_many_are_likely():
    chance = np.random.default_rng(1)
    kinds = np.where(chance.random(40_000) < 0.964, np.arange(40_000) % 4, chance.integers(4, 1000, 40_000))
    assert len(likely_lags(kinds, 0.95)) <= READINGS * COUNTED
    assert period_of(kinds) is None


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_an_iteration_is_found_above_the_rhythm_of_its_layers(noise):
    """Within the iteration every fourth allocation is of the layers' kinds, at 93 % of the places."""
    chance = np.random.default_rng(1)
    once = np.where(chance.random(1000) < 0.96, np.arange(1000) % 4, chance.integers(4, 900, 1000))
    kinds = np.resize(once, 40_000)
    kinds[chance.random(40_000) < noise] = 900
    assert period_of(kinds) == 1000
