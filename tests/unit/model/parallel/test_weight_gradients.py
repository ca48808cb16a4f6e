"""Placeholders of fused weight gradients: one a shape, heard of by hooks, added to nothing."""

from __future__ import annotations

import torch
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.observer import NullObserver
from oomscope.model.distributed.param_and_grad_buffer import build_grad_buffers
from oomscope.model.parallel.parallel_state import ParallelState
from oomscope.model.parallel.tensor_parallel import Placeholders, TensorParallel, column_parallel_linear

CONFIG = Config.model_validate({"model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2}})


class Pair(nn.Module):
    """Two matrices of one shape and one of another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in ((8, 8), (8, 8), (4, 8)))

    def forward(self, x: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
        for weight in self.weights:
            x = column_parallel_linear(x, weight, None, tp)
        return x.sum()


def test_one_placeholder_for_each_shape() -> None:
    placeholders = Placeholders(NullObserver())
    model = Pair()
    (buffer,) = build_grad_buffers([model], CONFIG, ParallelState(), NullObserver())
    for _ in range(2):
        model(torch.ones(3, 8), TensorParallel(placeholders=placeholders)).backward()
    assert sorted(tensor.numel() for tensor in placeholders._made.values()) == [32, 64]
    assert all(param.grad is None for param in buffer.params)


def test_main_gradients_are_those_of_autograd() -> None:
    fused, plain = Pair(), Pair()
    x = torch.randn(3, 8)
    placeholders = Placeholders(NullObserver())
    for model, tp in ((fused, TensorParallel(placeholders=placeholders)), (plain, TensorParallel())):
        (buffer,) = build_grad_buffers([model], CONFIG, ParallelState(), NullObserver())
        buffer.zero()
        for _ in range(2):
            model(x, tp).backward()
            for made in placeholders._made.values():
                made.fill_(torch.nan)
    for one, two in zip(fused.weights, plain.weights, strict=True):
        torch.testing.assert_close(one.main_grad, two.main_grad)
