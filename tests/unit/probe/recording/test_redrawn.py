"""How often ``trunc_normal_`` draws again on a virtual card."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch.nn import init

from oomscope.probe.recording.assumed_values import rounds_of
from tests.unit.virtual.on_card import on_card

draws_again = pytest.mark.skipif(
    ".any()" not in inspect.getsource(init._no_grad_trunc_normal_), reason="this torch draws once"
)


@draws_again
@pytest.mark.parametrize("bounds", [(0.0, 0.02, -2.0, 2.0), (0.0, 1.0, -2.0, 2.0), (0.0, 1.0, -1.0, 1.0)])
def test_as_often_as_the_cpu_draws(bounds: tuple[float, float, float, float], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    find = torch.Tensor.any
    monkeypatch.setattr(torch.Tensor, "any", lambda *args: asked.append(1) or find(*args))
    torch.manual_seed(0)
    for _ in range(5):
        init.trunc_normal_(torch.empty(100_000), *bounds)
    drawn_again = len(asked) / 5 - 1
    assert math.isclose(drawn_again, rounds_of(100_000, *bounds), abs_tol=2.5)
    assert (drawn_again == 0) == (rounds_of(100_000, *bounds) == 0)


def test_uniform_numbers_are_accepted_by_their_density() -> None:
    assert 10 < rounds_of(1000, 0.0, 1.0, 2.0, 6.0) < 100
    assert rounds_of(1000, 0.0, 1.0, 0.0, 0.0) in (0, 1)


@draws_again
@pytest.mark.parametrize("values", ["zeros", "threes"])
def test_nothing_unknown_is_read_and_it_ends(values: str) -> None:
    said = on_card(
        """
        from oomscope.probe.recording.assumed_values import redrawn_as_expected
        weight = torch.empty(1 << 18, device='cuda')
        with redrawn_as_expected():
            torch.nn.init.trunc_normal_(weight)
        say([state().unknown_reads, torch.cuda.max_memory_allocated() // weight.nbytes])
        """,
        preamble="torch",
        values=values,
    )
    assert said == [0, 4], "weight, what was drawn before and now, and their choice"
