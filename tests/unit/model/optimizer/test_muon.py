"""Muon: what it does to matrices, how it lies on ranks, and the bytes of a step."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oomscope.config.schema import OptimizerConfig
from oomscope.model.optimizer.muon import Matrix, Muon

ALONE = Matrix(None, 1, 0, None)


def config(**optimizer: Any) -> OptimizerConfig:
    exact = {"muon_fp32_matmul_prec": "high", "muon_num_ns_steps": 15, "muon_momentum": 0.0, "lr": 1.0}
    return OptimizerConfig(optimizer="muon", **{**exact, **optimizer})


def stepped(grad: torch.Tensor, matrix: Matrix = ALONE, **optimizer: Any) -> torch.Tensor:
    """Return what is taken from a parameter of zeros."""
    param = torch.zeros_like(grad)
    param.grad = grad
    Muon([{"params": [param], "matrices": [matrix], "weight_decay": 0.0}], config(**optimizer)).step()
    return -param


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_the_update_has_the_gradients_singular_vectors_and_equal_singular_values(m: int, n: int, seed: int) -> None:
    grad = random(m, n, seed=seed)
    left, values, right = torch.linalg.svd(grad, full_matrices=False)
    if values[-1] < 1e-2 * values[0]:
        return  # takes more iterations
    found = stepped(grad) / max(m, n) ** 0.5
    along = left.T @ found @ right.T
    torch.testing.assert_close(along, along.diagonal().diag(), atol=5e-3, rtol=0.0)
    assert along.diagonal().min() > 0.6
    assert along.diagonal().max() < 1.4


def test_momentum_decay_and_scale() -> None:
    grad, param = random(4, 6), random(4, 6, seed=1)
    kept = param.clone()
    param.grad = grad
    group = {"params": [param], "matrices": [ALONE], "weight_decay": 0.5}
    muon = Muon([group], config(muon_momentum=0.75, lr=0.1, muon_extra_scale_factor=0.2))
    muon.step()
    torch.testing.assert_close(muon.state[param]["momentum_buffer"], 0.25 * grad)
    torch.testing.assert_close(param, 0.95 * kept - 0.1 * 0.2 * stepped(grad))


def test_stacked_matrices_and_experts_are_stepped_one_by_one() -> None:
    qkv = random(8, 6)
    one_by_one = torch.cat([stepped(part) for part in qkv.split((4, 2, 2))])
    stacked = Matrix(None, 1, 0, None, (4, 2, 2))
    torch.testing.assert_close(stepped(qkv, stacked), one_by_one)
    torch.testing.assert_close(stepped(qkv, stacked, muon_split_qkv=False), stepped(qkv))
    experts = random(3, 4, 6)
    torch.testing.assert_close(stepped(experts), torch.stack([stepped(expert) for expert in experts]))
