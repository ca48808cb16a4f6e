"""Offload changes where saved activations lie, and not one bit of loss or gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oomscope.model.base.device import SideStream
from oomscope.model.gpt.stage import GPTStage
from oomscope.model.memory import layer_offload as offload
from oomscope.model.memory.offload import LayerOffload
from oomscope.model.parallel.parallel_state import ParallelState

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _offload_small_tensors(monkeypatch):
    monkeypatch.setattr(offload, "SMALLEST_OFFLOADED", 32)


def loss_and_gradients(config) -> list[torch.Tensor]:
    stage = GPTStage(
        config,
        ParallelState(),
        layers=range(4),
        pre_process=True,
        post_process=True,
        device=CPU,
        dtype=torch.bfloat16,
    )
    tokens = torch.arange(32).view(2, 16)
    torch.manual_seed(3)
    losses = [stage(tokens, tokens) for _ in range(2)]
    for loss in losses:
        loss.backward()
    return [*losses, torch.rand(1), *(parameter.grad for parameter in stage.parameters())]


@pytest.mark.parametrize("backend", ["flash", "unfused"])
@pytest.mark.parametrize("positions", ["rope", "learned_absolute"])
def test_offload_gives_the_same_bits(config_of, positions, backend):
    model = {
        "num_layers": 4,
        "position_embedding_type": positions,
        "attention_backend": backend,
        "attention_dropout": 0.0 if backend == "flash" else 0.1,
    }
    plain = loss_and_gradients(config_of(model=model))
    for layers in (0, 1, 2, 3):
        setting = {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
        offloaded = loss_and_gradients(config_of(model=model, offload=setting))
        assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True)), layers


class Square(nn.Module):
    """Saves its input, and a small tensor beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x + self.weight * self.weight + x[:4].sum() ** 2


def run_layers(offloaded: int) -> tuple[list[str], torch.Tensor]:
    """Return what the layers did, in order, and the gradient of the input."""
    log: list[str] = []
    layers = nn.ModuleList(Square() for _ in range(5))
    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, index=index: log.append(f"forward {index}"))
    names: dict[int, int] = {}

    def logged(method):
        original = getattr(offload._LayerGroup, method)

        def call(group):
            log.append(f"{method} {names.setdefault(id(group), len(names))}")
            groups.append(group)
            original(group)

        return call

    groups: list[object] = []
    x = torch.arange(64.0).div(64).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        for method in ("offload", "release", "reload"):
            patch.setattr(offload._LayerGroup, method, logged(method))
        out = LayerOffload(layers, offloaded, CPU).run(x)
        out.register_hook(lambda _: log.append("backward"))
        out.sum().backward()
    return log, x.grad


def test_copies_leave_and_come_back_on_transformer_engines_schedule():
    log, gradient = run_layers(2)
    assert log == [
        "forward 0",
        "offload 0",
        "forward 1",
        "offload 1",
        "forward 2",
        "release 0",
        "forward 3",
        "release 1",
        "forward 4",
        "backward",
        "reload 1",
        "reload 0",
    ]
    assert torch.equal(gradient, run_layers(0)[1])


def test_parameters_and_small_tensors_stay():
    weight = nn.Parameter(torch.ones(8, 8))
    group = offload._LayerGroup(SideStream(CPU), [weight])
    large, part = torch.ones(8, 8), torch.ones(16, 8)[:8]
    assert group._pack(weight.t()) is not None
    assert not isinstance(group._pack(weight.t()), offload._Packed)
    assert not isinstance(group._pack(torch.ones(31)), offload._Packed)
    assert not isinstance(group._pack(part), offload._Packed)
    packed = [group._pack(large), group._pack(large.t())]
    assert packed[0].storage is packed[1].storage
    group.offload()
    group.release()
    assert packed[0].storage.device is None
    assert torch.equal(offload._unpack(packed[1]), large.t())
    assert packed[0].storage.host is None
