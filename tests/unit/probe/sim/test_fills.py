"""Fills that are put off change nothing but time and memory: whoever looks sees what there would have been."""

from __future__ import annotations

import copy
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from oomscope.probe.sim import fills
from oomscope.probe.sim.fills import HostFills, Waiting, draws_of
from oomscope.units import GiB, MiB

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Host(TorchDispatchMode):
    """A mode under which operations are those of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.fills = HostFills()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.fills.run(func, args, kwargs or {})


def put_off(program: Callable[[], Any]) -> Any:
    host = Host()
    with host.fills.installed(), host:
        return program()


def seen(value: Any) -> Any:
    """Return bits of what a program returns, so that NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().view(torch.uint8).tolist() if value.dim() else value.item()
    return [seen(item) for item in value] if isinstance(value, (list, tuple)) else value


def same(program: Callable[[], Any]) -> None:
    """Check that a program returns the same, and leaves the generator the same, with its fills put off."""
    torch.manual_seed(1)
    expected = seen(program())
    state = torch.get_rng_state()
    torch.manual_seed(1)

    def looked_at() -> Any:
        return seen(program())

    assert put_off(looked_at) == expected
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[Waiting]:
    """What was filled in the end."""
    done: list[Waiting] = []
    into = Waiting.into

    def noted(waiting: Waiting, storage: torch.UntypedStorage) -> None:
        done.append(waiting)
        into(waiting, storage)

    monkeypatch.setattr(Waiting, "into", noted)
    return done


STEPS: dict[str, Callable[[list[torch.Tensor], int], Any]] = {
    "new": lambda made, n: made.append(torch.empty(n % 300)),
    "new in another type": lambda made, n: made.append(torch.empty(64 + n % 40, dtype=FLOATS[n % 4])),
    "new matrix": lambda made, n: made.append(torch.empty(8, 8 + n % 20)),
    "normal": lambda made, n: made[n % len(made)].normal_(0, 1 + n % 3),
    "uniform": lambda made, n: made[n % len(made)].uniform_(-1, n % 7),
    "kaiming": lambda made, n: nn.init.normal_(made[n % len(made)]).mul_(2),
    "truncated": lambda made, n: nn.init.trunc_normal_(made[n % len(made)].zero_(), std=1 + n % 3),
    "zeroes": lambda made, n: made[n % len(made)].zero_(),
    "arithmetic": lambda made, n: made[n % len(made)].fill_(n).add_(1).div_(3),
    "clone": lambda made, n: made.append(made[n % len(made)].clone()),
    "convert": lambda made, n: made.append(made[n % len(made)].to(FLOATS[n % 4])),
    "transposed": lambda made, n: made.append(made[n % len(made)].t() if made[n % len(made)].dim() == 2 else made[0]),
    "part": lambda made, n: made[n % len(made)][: n % 50].fill_(n),
    "overwrite": lambda made, n: made[n % len(made)].copy_(made[n % len(made)] * 0.5),
    "overwrite by itself": lambda made, n: made[n % len(made)].copy_(made[n % len(made)]),
    "bytes": lambda made, n: (
        made[n % len(made)].view(torch.uint8).clone() if made[n % len(made)].is_contiguous() else 0
    ),
    "draw": lambda made, n: torch.randint(0, 100, (3,)),
    "draw lengths": lambda made, n: (made[n % len(made)].abs().nan_to_num(0, 0, 0).clamp(0, 9) * 10).long(),
    "seed": lambda made, n: torch.manual_seed(n % 3) and None,
    "state": lambda made, n: torch.get_rng_state(),
    "fork": lambda made, n: _forked(),
    "read": lambda made, n: made[n % len(made)].tolist() if not made[n % len(made)].isnan().any() else None,
    "drop": lambda made, n: made.pop() if len(made) > 1 else None,
}


def _forked() -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        return torch.rand(5)


@settings(max_examples=60)
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 1000)), max_size=25))
def test_a_program_sees_what_it_would_have_seen(steps: list[tuple[str, int]]) -> None:
    def program() -> list[Any]:
        made = [torch.zeros(100)]
        told = []
        for name, number in steps:
            before = len(made)
            told.append(seen(STEPS[name](made, number)) if name not in {"new", "clone", "convert"} else None)
            if name.startswith("new") and len(made) > before:
                made[-1].uniform_() if number % 2 else made[-1].normal_()
        return [told, made]

    same(program)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("func", sorted(fills.FILLS, key=str))
def test_how_much_a_fill_draws_is_known(func: Any, dtype: torch.dtype) -> None:
    draws = draws_of(func, dtype)
    assert draws is not None
    assert draws(640) == 640 * (2 if dtype is torch.float64 else 1)


def test_a_model_that_nobody_looks_at_takes_neither_memory_nor_numbers(filled: list[Waiting]) -> None:
    def program() -> tuple[nn.Module, int]:
        before = resident()
        model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(16)))
        for layer in model:
            nn.init.normal_(layer.weight, std=0.02).data.mul_(2)
        return model.to(torch.bfloat16), resident() - before

    model, grown = put_off(program)
    assert filled == []
    assert sum(parameter.nbytes for parameter in model.parameters()) > GiB // 2
    assert grown < 64 * MiB


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_modules_are_what_they_would_have_been() -> None:
    def program() -> list[Any]:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        embedding = nn.Embedding(100, 32, padding_idx=3)
        twin = copy.deepcopy(model).double()
        lengths = torch.randint(1, 9, (4,))
        twin.load_state_dict(model.state_dict())
        return [lengths, embedding.weight, *model.parameters(), *twin.parameters(), torch.rand(3)]

    same(program)


def test_what_is_written_over_is_never_filled(filled: list[Waiting]) -> None:
    def program() -> torch.Tensor:
        layer = nn.Linear(64, 64, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.ones(64, 64))
        return layer.weight

    assert put_off(program).detach().eq(1).all()
    assert filled == []


@pytest.mark.parametrize(
    "look", [lambda t: t.numpy().copy(), lambda t: t.tolist(), lambda t: t.sum().item(), lambda t: t.t().numpy().copy()]
)
def test_whoever_looks_finds_it_filled(look: Callable[[torch.Tensor], Any]) -> None:
    def program() -> list[float]:
        return torch.as_tensor(look(torch.empty(16, 8).normal_())).flatten().tolist()

    same(program)


def test_a_generator_of_the_programs_own_is_served_at_once(filled: list[Waiting]) -> None:
    def program() -> list[Any]:
        own = torch.Generator().manual_seed(4)
        return [torch.empty(100).normal_(generator=own), own.get_state()]

    same(program)
    assert filled == []


def test_numbers_in_other_orders_and_on_parts_are_drawn_at_once() -> None:
    def program() -> list[Any]:
        rows = torch.zeros(40, 40)
        rows[:, ::2].normal_()
        rows.t()[3].uniform_()
        rows.view(-1)[100:900].normal_()
        return [rows, torch.empty(33).normal_(), torch.rand(2)]

    same(program)


def test_in_a_session_a_model_of_the_host_moves_without_numbers(simulate, filled: list[Waiting]) -> None:
    """The length of a batch is drawn after the model was built, and is what it is without a session."""

    def built(device: Any) -> tuple[nn.Module, int]:
        torch.manual_seed(6)
        model = nn.Linear(2048, 2048).to(device)
        return model, int(torch.randint(1, 1000, ()))

    _, expected = built("cpu")
    session = simulate()
    with session:
        model, length = built(session.device)
        with session.iteration(0):
            model(torch.ones(length, 2048).to(session.device)).sum().backward()
    assert length == expected
    assert filled == []
