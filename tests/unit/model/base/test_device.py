"""Where a device computes nothing, the bundled model leaves out writing values, and takes the same memory."""

from __future__ import annotations

import pytest
import torch

from oomscope import virtual
from oomscope.model.base import device as side_stream
from oomscope.model.base.device import SideStream, computes
from oomscope.model.optimizer import grad_scaler
from oomscope.model.optimizer.fused_optimizers import FusedAdam
from oomscope.model.optimizer.grad_scaler import GradScaler

CPU = torch.device("cpu")
OPTIONS = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}


@pytest.mark.parametrize("loaded", [True, False])
def test_a_virtual_card_computes_nothing(monkeypatch: pytest.MonkeyPatch, loaded: bool) -> None:
    monkeypatch.setattr(virtual, "is_loaded", lambda: loaded)
    assert computes(torch.device("cuda")) is not loaded
    assert computes(CPU)
    assert not computes(torch.device("meta"))


@pytest.mark.parametrize("are_computed", [True, False])
def test_adam_makes_its_states_and_writes_nothing(are_computed: bool) -> None:
    weight = torch.ones(4)
    weight.grad = torch.ones(4)
    optimizer = FusedAdam([weight], **OPTIONS, computes=are_computed)
    optimizer.step()
    assert {name: value.shape for name, value in optimizer.state[weight].items()} == {
        "exp_avg": weight.shape,
        "exp_avg_sq": weight.shape,
    }
    assert torch.equal(weight, torch.ones(4)) is not are_computed


def test_a_copy_that_takes_no_memory_on_the_way_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(SideStream(CPU).fill(torch.zeros(2), torch.ones(2)), torch.ones(2))
    monkeypatch.setattr(side_stream, "computes", lambda device: False)
    side = SideStream(CPU)
    assert torch.equal(side.fill(torch.zeros(2), torch.ones(2)), torch.zeros(2))
    other_dtype, other_layout = torch.ones(2, dtype=torch.bfloat16), torch.ones(4)[::2]
    for source in (other_dtype, other_layout):
        assert torch.equal(side.fill(torch.zeros(2), source), torch.ones(2))


def test_gradients_without_values_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_scaler, "computes", lambda device: False)
    assert GradScaler(2.0, CPU).unscale([torch.tensor([float("inf")])], [])
