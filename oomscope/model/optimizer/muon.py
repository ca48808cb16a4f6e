"""Muon: the momentum of a matrix is made orthogonal before it is added, by Newton-Schulz iterations.

One fp32 state a parameter, and temporaries while one matrix after the other, gathered from all TP ranks, is stepped.
What they are and when they go follows the library that Megatron-Core calls (Emerging-Optimizers
``orthogonalized_optimizer.py`` and ``muon_utils.py``, newton_schulz_tp; Megatron-Core
``optimizer/emerging_optimizers.py``, TensorParallelMuon).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import functional

from oomscope.config.schema import OptimizerConfig
from oomscope.model.optimizer.fused_optimizers import GroupedOptimizer

_QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""Factors of X, XXᵀX and XXᵀXXᵀX, one triple an iteration (the coefficients called ``quintic``)."""
_EPSILON = 1e-15


class Matrix(NamedTuple):
    """How a parameter of Muon lies on its ranks."""

    group: dist.ProcessGroup | None
    """Group of the ranks that share the parameter; it is gathered over it."""
    ranks: int
    rank: int
    dim: int | None
    """Dimension along which it is split; None where every rank holds all of it, and nothing is gathered."""
    blocks: tuple[int, ...] = ()
    """Rows of the matrices that it stacks and that are stepped one by one: queries, keys, values."""


class Muon(GroupedOptimizer):
    """Muon on fp32 matrices [m, n], or [experts, m, n], with their gradients in ``.grad``."""

    def __init__(self, params: Iterable[dict[str, Any]], config: OptimizerConfig) -> None:
        super().__init__(params, {"lr": config.lr, "weight_decay": 0.0})
        self._config = config

    def _step_group(self, group: dict[str, Any]) -> None:
        stepped = [pair for pair in zip(group["params"], group["matrices"], strict=True) if pair[0].grad is not None]
        for param, _ in stepped:
            if not self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        for param, matrix in stepped:
            momentum = self.state[param]["momentum_buffer"]
            for value, grad, buffer in zip(_singly(param), _singly(param.grad), _singly(momentum), strict=True):
                value.mul_(1 - self._config.lr * group["weight_decay"])
                self._step_matrix(value, grad, buffer, matrix)

    def _step_matrix(self, value: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor, matrix: Matrix) -> None:
        config = self._config
        momentum.lerp_(grad, 1 - config.muon_momentum)
        direction = grad.lerp(momentum, config.muon_momentum) if config.muon_nesterov else momentum
        if matrix.blocks and config.muon_split_qkv:
            parts = [part.clone() for part in direction.split(matrix.blocks)]
            update = torch.cat([self._orthogonal(part, matrix) for part in parts])
        else:
            update = self._orthogonal(direction, matrix)
        value.add_(update, alpha=-config.lr)

    def _orthogonal(self, direction: torch.Tensor, matrix: Matrix) -> torch.Tensor:
        """Return what is added for ``direction`` [m, n]: orthogonal rows or columns, times the root of the longer."""
        config, size = self._config, list(direction.shape)
        if matrix.dim is None or config.muon_tp_mode == "blockwise":
            found = _newton_schulz(direction, config)
        else:
            found = _gathered_newton_schulz(direction, matrix.dim, matrix, config)
            size[matrix.dim] *= matrix.ranks
        update: torch.Tensor = found * float(max(size)) ** 0.5 * config.muon_extra_scale_factor
        return update


class Chain(GroupedOptimizer):
    """Optimizers that each step parameters of their own, one after the other (Megatron-Core ``ChainedOptimizer``)."""

    def __init__(self, optimizers: Sequence[GroupedOptimizer]) -> None:
        self._optimizers = tuple(optimizers)
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        for one in optimizers:
            one.state = self.state
        self.param_groups = [group for one in optimizers for group in one.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step them all; there is no closure."""
        for one in self._optimizers:
            one.step()


def _singly(whole: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the matrices of a parameter."""
    return iter(whole if whole.ndim == 3 else (whole,))


def _gathered_newton_schulz(direction: torch.Tensor, dim: int, matrix: Matrix, config: OptimizerConfig) -> torch.Tensor:
    """Return this rank's part, along ``dim``, of the whole matrix made orthogonal; one rank makes these copies too."""
    shards = [torch.empty_like(direction) for _ in range(matrix.ranks)]
    if matrix.ranks > 1:
        dist.all_gather(shards, direction.contiguous(), group=matrix.group)
    else:
        shards[0].copy_(direction)
    whole = torch.cat(shards, dim=dim)
    return _newton_schulz(whole, config).chunk(matrix.ranks, dim)[matrix.rank]


def _newton_schulz(matrix: torch.Tensor, config: OptimizerConfig) -> torch.Tensor:
    """Return [m, n] with about the singular vectors of ``matrix`` [m, n] and singular values near 1, in fp32."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = functional.normalize(matrix.mT if is_tall else matrix, p=2.0, dim=(-2, -1), eps=_EPSILON)  # type: ignore[arg-type]
    if config.muon_fp32_matmul_prec == "medium":
        x = x.bfloat16()
    for factors in islice(cycle(_QUINTIC), config.muon_num_ns_steps):
        x = _iterate(x, *factors)
    x = x.float()
    return x.mT if is_tall else x


def _iterate(x: torch.Tensor, a: float, b: float, c: float) -> torch.Tensor:
    square = x @ x.mT
    return torch.addmm(x, torch.addmm(square, square, square, alpha=c, beta=b), x, alpha=1.0, beta=a)
