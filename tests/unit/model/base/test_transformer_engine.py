"""What Transformer Engine's kernels hold follows the card."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from oomscope.model.base import transformer_engine
from oomscope.model.base.device import capability, takes_flash_attn, workspaces
from oomscope.units import KiB, MiB

META = torch.device("meta")


@pytest.fixture
def card(monkeypatch):
    """Let meta tensors be on a card of the given capability."""

    def play(capability):
        monkeypatch.setattr(transformer_engine, "capability", lambda device: capability)

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


@pytest.mark.parametrize(("dtype", "count"), [(None, 1), ("fp32", 1), ("fp64", 0)])
def test_a_router_among_local_layers_has_one_too(config_of, card, dtype, count):
    card((9, 0))
    model = {"transformer_impl": "local", "num_moe_experts": 4, "moe_router_dtype": dtype}
    assert [space.nbytes for space in workspaces(config_of(model=model), META)] == count * [32 * MiB + KiB]


def test_flash_attn_is_taken_below_hopper():
    assert takes_flash_attn((8, 0))
    assert takes_flash_attn((8, 9))
    assert not any(takes_flash_attn(card) for card in (None, (9, 0), (10, 0)))


def test_a_backend_that_is_named_is_taken_on_every_card():
    assert [takes_flash_attn(card, "flash") for card in (None, (8, 0), (9, 0))] == [False, True, True]
    assert not any(takes_flash_attn(card, "fused") for card in (None, (8, 0), (9, 0)))


def test_the_device_says_its_capability(monkeypatch):
    played = SimpleNamespace(get_device_capability=lambda device: (8, 6))
    monkeypatch.setattr(torch, "get_device_module", lambda device: played)
    assert capability(torch.device("cuda", 0)) == (8, 6)
    assert capability(torch.device("cpu")) is None
