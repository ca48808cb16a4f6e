"""Which devices compute; what Transformer Engine's kernels hold follows the card."""

from __future__ import annotations

import pytest
import torch

from oomscope import virtual
from oomscope.model.base import device as devices
from oomscope.model.base.device import computes, takes_flash_attn, workspaces
from oomscope.units import KiB, MiB
from tests.unit.model.conftest import config_of
from tests.unit.virtual.on_card import on_card

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("loaded", [True, False])
def test_a_virtual_card_computes_nothing(monkeypatch: pytest.MonkeyPatch, loaded: bool) -> None:
    monkeypatch.setattr(virtual, "is_loaded", lambda: loaded)
    assert computes(torch.device("cuda")) is not loaded
    assert computes(CPU)
    assert not computes(torch.device("meta"))


def test_a_copy_to_the_host_in_another_dtype_holds_what_torch_s_own_does_and_reads_nothing() -> None:
    said = on_card(
        """from oomscope.model.base.device import SideStream
side = SideStream(torch.device("cuda", 0))
grad, weight = (torch.empty(1 << 20, dtype=torch.bfloat16, device="cuda") for _ in range(2))
host = side.pinned(grad.shape, torch.float32)
side.fill(host, weight)
before = torch.cuda.max_memory_allocated()
side.finish(side.copy([(host, grad)]))
ours = torch.cuda.max_memory_allocated(), state().unknown_reads
side.copy([(weight, host)])
torch.cuda.reset_peak_memory_stats()
host.copy_(grad, non_blocking=True)
say([before, *ours, torch.cuda.max_memory_allocated(), state().unknown_reads])""",
        preamble="torch",
    )
    assert said == [4 * MiB, 8 * MiB, 0, 8 * MiB, 1]


@pytest.fixture
def card(monkeypatch):
    """Let meta tensors be on a card of the given capability."""

    def play(capability):
        monkeypatch.setattr(devices, "capability", lambda device: capability)

    return play


@pytest.mark.parametrize(
    ("version", "nbytes"), [((8, 0), 4 * MiB), ((9, 0), 32 * MiB + KiB), ((10, 0), 32 * MiB + KiB)]
)
def test_one_workspace_by_the_card(card, version, nbytes):
    card(version)
    assert [space.nbytes for space in workspaces(config_of(), META)] == [nbytes]


def test_grouped_experts_have_one_a_stream(card):
    card((8, 0))
    experts = {"num_moe_experts": 4, "moe_grouped_gemm": True}
    assert [space.nbytes for space in workspaces(config_of(model=experts), META)] == 5 * [4 * MiB]
    assert len(workspaces(config_of(model={**experts, "moe_grouped_gemm": False}), META)) == 1


def test_local_layers_and_the_cpu_have_none(card):
    assert workspaces(config_of(), torch.device("cpu")) == []
    card((9, 0))
    assert workspaces(config_of(model={"transformer_impl": "local"}), META) == []


def test_flash_attn_is_taken_below_hopper():
    assert takes_flash_attn((8, 0))
    assert takes_flash_attn((8, 9))
    assert not any(takes_flash_attn(card) for card in (None, (9, 0), (10, 0)))
