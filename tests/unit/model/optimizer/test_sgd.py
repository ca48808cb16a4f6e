"""The fused SGD is torch's, and keeps what momentum needs."""

from __future__ import annotations

import copy

import pytest
import torch

from oomscope.model.optimizer.fused_optimizers import FusedSGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_torchs(momentum: float) -> None:
    found = [torch.randn(7, generator=torch.Generator().manual_seed(seed), requires_grad=True) for seed in range(3)]
    expected = copy.deepcopy(found)
    optimizers = [
        FusedSGD([{"params": found, "weight_decay": 0.1}], lr=0.1, momentum=momentum),
        torch.optim.SGD(expected, lr=0.1, momentum=momentum, weight_decay=0.1),
    ]
    for step in range(3):
        for params, optimizer in zip((found, expected), optimizers, strict=True):
            for index, param in enumerate(params[: None if step else 2]):  # the last joins late
                param.grad = torch.full((7,), float(step + index))
            optimizer.step()
    for one, two in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(one, two)
