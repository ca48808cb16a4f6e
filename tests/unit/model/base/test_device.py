"""Where a device computes nothing, no values are written; what Transformer Engine's kernels hold follows the card."""

from __future__ import annotations

import pytest
import torch

from oomscope import virtual
from oomscope.config.schema import OptimizerConfig
from oomscope.model.base import device as devices
from oomscope.model.base.device import SideStream, computes, takes_flash_attn, workspaces
from oomscope.model.optimizer import grad_scaler
from oomscope.model.optimizer.fused_optimizers import FusedAdam
from oomscope.model.optimizer.grad_scaler import GradScaler
from oomscope.units import KiB, MiB

CPU, META = torch.device("cpu"), torch.device("meta")


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
    optimizer = FusedAdam([weight], OptimizerConfig(), computes=are_computed)
    optimizer.step()
    assert {name: value.shape for name, value in optimizer.state[weight].items()} == {
        "exp_avg": weight.shape,
        "exp_avg_sq": weight.shape,
    }
    assert torch.equal(weight, torch.ones(4)) is not are_computed


def test_a_copy_that_takes_no_memory_on_the_way_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(SideStream(CPU).fill(torch.zeros(2), torch.ones(2)), torch.ones(2))
    monkeypatch.setattr(devices, "computes", lambda device: False)
    side = SideStream(CPU)
    assert torch.equal(side.fill(torch.zeros(2), torch.ones(2)), torch.zeros(2))
    other_dtype, other_layout = torch.ones(2, dtype=torch.bfloat16), torch.ones(4)[::2]
    for source in (other_dtype, other_layout):
        assert torch.equal(side.fill(torch.zeros(2), source), torch.ones(2))


def test_gradients_without_values_are_finite(config_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_scaler, "computes", lambda device: False)
    assert GradScaler(config_of(optimizer={"loss_scale": 2.0}), CPU).unscale([torch.tensor([float("inf")])], [])


@pytest.fixture
def card(monkeypatch):
    """Let meta tensors be on a card of the given capability."""

    def play(capability):
        monkeypatch.setattr(devices, "capability", lambda device: capability)

    return play


@pytest.mark.parametrize(
    ("version", "nbytes"), [((8, 0), 4 * MiB), ((9, 0), 32 * MiB + KiB), ((10, 0), 32 * MiB + KiB)]
)
def test_one_workspace_by_the_card(config_of, card, version, nbytes):
    card(version)
    assert [space.nbytes for space in workspaces(config_of(), META)] == [nbytes]


def test_grouped_experts_have_one_a_stream(config_of, card):
    card((8, 0))
    experts = {"num_moe_experts": 4, "moe_grouped_gemm": True}
    assert [space.nbytes for space in workspaces(config_of(model=experts), META)] == 5 * [4 * MiB]
    assert len(workspaces(config_of(model={**experts, "moe_grouped_gemm": False}), META)) == 1


def test_local_layers_and_the_cpu_have_none(config_of, card):
    assert workspaces(config_of(), torch.device("cpu")) == []
    card((9, 0))
    assert workspaces(config_of(model={"transformer_impl": "local"}), META) == []


def test_flash_attn_is_taken_below_hopper():
    assert takes_flash_attn((8, 0))
    assert takes_flash_attn((8, 9))
    assert not any(takes_flash_attn(card) for card in (None, (9, 0), (10, 0)))
