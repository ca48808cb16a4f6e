"""Answers that a virtual card assumes, since only one is likely in a real training."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch.nn import init

from oomscope.probe.recording.values.assumed_values import rounds_of
from tests.unit.probe.recording.values.known import followed
from tests.unit.virtual.on_card import on_card

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this torch tells no kernel")

draws_again = pytest.mark.skipif(
    ".any()" not in inspect.getsource(init._no_grad_trunc_normal_), reason="this torch draws once"
)


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_distributions_check_holds(values: str) -> None:
    said = followed(
        """
from oomscope.probe.recording.values.assumed_values import arguments_are_valid, finite_numbers
notes, finite = [], []
with finite_numbers(finite.append), arguments_are_valid(notes.append):
    from torch.distributions import Categorical, Normal
    scores = torch.randn(16, 4, device=d)
    for drawn in (Categorical(logits=scores), Normal(scores, scores.exp())):
        drawn.log_prob(drawn.sample())
    loss = torch.nn.GaussianNLLLoss()(scores, scores, scores.exp())
say([len(notes), finite, list(loss.shape)])
leave()
""",
        values=values,
    )
    assert said == [1, [], []]


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_known_of_data_is_not_assumed(values: str) -> None:
    said = followed(
        """
from oomscope.probe.recording.values.assumed_values import finite_numbers
notes = []
with finite_numbers(notes.append):
    data = torch.tensor([1.0, float("nan"), float("inf"), -2.0]).to(d)
    missing = torch.isnan(data)
    answers = [missing.tolist(), data.isinf().tolist(), torch.isfinite(data).tolist(), bool(missing.any())]
    total = data[3]
    answers += [bool(torch.isfinite(total)), bool(total > 0)]
    told = list(notes)
    assumed = bool(torch.isnan(torch.randn(4, device=d)).any())
say([answers, told, assumed, len(notes), state().unknown_reads])
leave()
""",
        values=values,
    )
    of_data = [[False, True, False, False], [False, False, True, False], [True, False, False, True], True]
    assert said == [[*of_data, True, False], [], False, 1, 0]


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


@draws_again
@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_nothing_unknown_is_read_and_it_ends(values: str) -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.assumed_values import redrawn_as_expected
        weight = torch.empty(1 << 18, device='cuda')
        with redrawn_as_expected():
            torch.nn.init.trunc_normal_(weight)
        say([state().unknown_reads, torch.cuda.max_memory_allocated() // weight.nbytes])
        """,
        preamble="torch",
        values=values,
    )
    assert said == [0, 4], "weight, what was drawn before and now, and their choice"


@pytest.mark.parametrize("values", ["zeros", "larger"])
def test_what_is_printed_is_not_read_from_the_card(values: str) -> None:
    said = on_card(
        """
        from oomscope.probe.recording.values.assumed_values import printed_from_the_host
        loss = torch.nn.Linear(4, 4, device='cuda')(torch.randn(8, 4, device='cuda')).square().mean()
        copied = torch.tensor([[2, 0], [1, 7]]).cuda()[:, 1]
        large, none = torch.randn(1 << 20, device='cuda'), torch.empty(0, device='cuda')
        before = torch.cuda.memory_stats()['allocation.all.allocated']
        with printed_from_the_host():
            text = [repr(each) for each in (loss, copied, large, none, torch.ones(1))]
        say([text, state().unknown_reads, torch.cuda.memory_stats()['allocation.all.allocated'] - before])
        """,
        preamble="torch",
        values=values,
    )
    assert said == [
        [
            "tensor(?, device='cuda:0', grad_fn=<MeanBackward0>)",
            "tensor([0, 7], device='cuda:0')",
            "tensor(?, device='cuda:0')",
            "tensor([], device='cuda:0')",
            "tensor([1.])",
        ],
        *(0, 0),
    ]


def test_subclasses_find_torch_s_own_methods_in_their_tables() -> None:
    """As a parameter without a shape does, which only some methods may be called on."""
    said = on_card(
        """
from oomscope.probe.recording.values.assumed_values import finite_numbers
from oomscope.probe.recording.values.known_values import values_are_followed
own, looked_up = {torch.Tensor.to, torch.Tensor.clone, torch.Tensor.add, torch.Tensor.any}, []

class Image(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = function.__name__
        if name in ("to", "clone", "add", "any"):
            looked_up.append((name, function in own, function is getattr(torch.Tensor, name)))
        return super().__torch_function__(function, types, args, kwargs or {})

image = torch.zeros(2, 2, device='cuda').as_subclass(Image)
with values_are_followed(), finite_numbers([].append):
    lazy = torch.nn.LazyLinear(4).to('cuda').cuda()
    kept = [type(each).__name__ for each in (image.to(torch.float16), image.clone(), image.add(1), image.any())]
    say([list(lazy(torch.randn(3, 8, device='cuda')).shape), kept, sorted(set(looked_up))])
""",
        preamble="torch",
    )
    assert said == [[3, 4], ["Image"] * 4, [[name, True, True] for name in ("add", "any", "clone", "to")]]
