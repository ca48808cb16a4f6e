"""The generator is set forward to where drawing would have brought it, near and far."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.probe.sim import mersenne
from oomscope.probe.sim.mersenne import advanced


def drawn(generator: torch.Generator, count: int) -> None:
    torch.empty(count).uniform_(generator=generator)


@given(seed=st.integers(0, 2**63 - 1), before=st.integers(0, 2000), count=st.integers(0, 3000))
def test_it_stands_where_drawing_leaves_it(seed: int, before: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn(generator, before)
    state = generator.get_state()
    kept = state.clone()
    drawn(generator, count)
    assert torch.equal(advanced(state, count), generator.get_state())
    assert torch.equal(state, kept)


@pytest.mark.parametrize("count", [623, 624, 625, 1249, 19_937, 500_000])
@pytest.mark.parametrize("before", [0, 1, 623, 624])
def test_the_polynomial_leads_where_drawing_does(before: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mersenne, "DRAWN_ONE_BY_ONE", 0)
    generator = torch.Generator().manual_seed(7)
    drawn(generator, before)
    state = generator.get_state()
    drawn(generator, count)
    assert torch.equal(advanced(state, count), generator.get_state())


def test_far_away_two_steps_are_one() -> None:
    state = torch.Generator().manual_seed(11).get_state()
    for first, second in ((10**9, 3 * 10**9 + 5), (10**13, 1), (10**8 + 7, 10**12)):
        assert torch.equal(advanced(advanced(state, first), second), advanced(state, first + second))


def test_a_generator_goes_on_from_there() -> None:
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    drawn(generator, 100_001)
    expected = torch.rand(1000, generator=generator)
    other = torch.Generator()
    other.set_state(advanced(state, 100_001))
    assert torch.equal(torch.rand(1000, generator=other), expected)
