"""A mixture of experts: a router, the dispatch of tokens, and the experts as one grouped MLP.

The router's weights are applied between fc1 and fc2, so that fc2's output need not be kept (Megatron-Core's
memory-efficient permutation). Kept are the layer's input, the router's probabilities and indices, and of the rows
that visit this rank: fc1's input and output, and fc2's input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oomscope.model.autograd import Function
from oomscope.model.devices import computes
from oomscope.model.dispatch import Dispatch, ExpertParallel, plan
from oomscope.model.mlp import Activation, activate_into, differentiate_in_place
from oomscope.model.tensor_parallel import TensorParallel, add_weight_gradient, column_parallel_linear


class _GroupedLinear(Function):
    """rows [R, in] of E local experts, expert by expert, times their weights [E, out, in] → [R, out].

    Every product is written into its place, so that a device without values has nothing left to do.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, counts: list[int], fuse_weight_gradients: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.counts = counts
        ctx.fuse = fuse_weight_gradients
        out = torch.empty((rows.shape[0], weight.shape[1]), dtype=rows.dtype, device=rows.device)
        if computes(rows.device):
            for mine, target, matrix in zip(rows.split(counts), out.split(counts), weight, strict=True):
                torch.mm(mine, matrix.t(), out=target)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        rows, weight = ctx.saved_tensors
        counts: list[int] = ctx.counts
        grad_rows = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        if computes(rows.device):
            for mine, target, matrix in zip(grad.split(counts), grad_rows.split(counts), weight, strict=True):
                torch.mm(mine, matrix, out=target)
        return grad_rows, _GroupedLinear._weight_gradient(ctx, grad, rows, weight), None, None

    @staticmethod
    def _weight_gradient(ctx: Any, grad: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """Return gradᵀ · rows of each expert, or None after adding it to ``weight.main_grad``."""
        main_grad: torch.Tensor | None = getattr(weight, "main_grad", None) if ctx.fuse else None
        grad_weight = None
        if main_grad is None:
            grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        if computes(grad.device):
            for expert, (mine, x) in enumerate(zip(grad.split(ctx.counts), rows.split(ctx.counts), strict=True)):
                if main_grad is not None:
                    add_weight_gradient(main_grad[expert], mine, x)
                elif grad_weight is not None:
                    torch.mm(mine.t(), x, out=grad_weight[expert])
        return grad_weight


class _WeightedActivation(Function):
    """fc1's output times the router's probability of its row, through the non-linearity; saves these two only."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, probabilities: torch.Tensor, activation: Activation, is_gated: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(x, probabilities)
        ctx.activation = activation
        ctx.is_gated = is_gated
        gate, up = x.chunk(2, dim=-1) if is_gated else (x, None)
        out = torch.empty(gate.shape, dtype=x.dtype, device=x.device)
        activate_into(out, gate, activation)
        if up is not None:
            out.mul_(up)
        return out.mul_(probabilities.unsqueeze(-1))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        x, probabilities = ctx.saved_tensors
        weights = probabilities.unsqueeze(-1)
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if not ctx.is_gated:
            activate_into(grad_x, x, ctx.activation)
            grad_probabilities = _row_products(grad, grad_x)
            torch.mul(grad, weights, out=grad_x)
            differentiate_in_place(grad_x, x, ctx.activation)
            return grad_x, grad_probabilities, None, None
        gate, up = x.chunk(2, dim=-1)
        grad_gate, grad_up = grad_x.chunk(2, dim=-1)  # the second half holds the output until it is needed
        activate_into(grad_up, gate, ctx.activation)
        grad_probabilities = _row_products(grad, grad_up.mul_(up))
        activate_into(grad_up, gate, ctx.activation)
        grad_up.mul_(grad).mul_(weights)
        torch.mul(grad, up, out=grad_gate).mul_(weights)
        differentiate_in_place(grad_gate, gate, ctx.activation)
        return grad_x, grad_probabilities, None, None


def _row_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the inner product of each pair of rows, without a temporary of their size."""
    return torch.bmm(x.unsqueeze(1), y.unsqueeze(2)).flatten()


class Router(nn.Module):
    """Scores a token against every expert and picks the best k; their softmax weighs what they return.

    Megatron-Core ``moe/router.py::TopKRouter`` without balancing loss: the softmax is taken, in fp32, over the chosen
    k.
    """

    def __init__(self, weight: nn.Parameter, topk: int) -> None:
        super().__init__()
        self.weight = weight
        self._topk = topk

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return probabilities and experts, each [n, k], of the tokens ``x`` [n, h]."""
        logits = column_parallel_linear(x, self.weight, None, TensorParallel())
        scores, experts = logits.topk(self._topk, dim=-1)
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype), experts


class MoE(nn.Module):
    """The experts that take the place of the dense MLP.

    Args:
        router: picks experts; held alike by all ranks.
        fc1: this rank's experts [E/e, f or 2f, h].
        fc2: this rank's experts [E/e, h, f].
        activation: the non-linearity.
        is_gated: fc1's output is [gate | up].
        num_experts: routed experts of the layer, over all ranks.
        ep: how they are shared out.
        fuse_weight_gradients: add weight gradients straight into ``main_grad``.
    """

    def __init__(
        self,
        router: Router,
        fc1: nn.Parameter,
        fc2: nn.Parameter,
        *,
        activation: Activation,
        is_gated: bool,
        num_experts: int,
        ep: ExpertParallel,
        fuse_weight_gradients: bool,
    ) -> None:
        super().__init__()
        self.router = router
        self.fc1 = fc1
        self.fc2 = fc2
        self._activation: Activation = activation
        self._is_gated = is_gated
        self._num_experts = num_experts
        self._ep = ep
        self._fuse = fuse_weight_gradients

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        x = hidden.reshape(-1, hidden.shape[-1])
        probabilities, experts = self.router(x)
        order = experts.flatten().argsort(stable=True)
        token_of_row = order.div(experts.shape[1], rounding_mode="floor")
        rows = plan(experts, self._num_experts, self._ep)
        dispatch = Dispatch(token_of_row, rows, self._ep)
        weights = dispatch.carry(probabilities.flatten().index_select(0, order))
        out = self._experts(dispatch.there(x), weights, rows.by_expert)
        return dispatch.back(out, x.shape[0]).view(hidden.shape)

    def _experts(self, rows: torch.Tensor, weights: torch.Tensor, counts: list[int]) -> torch.Tensor:
        inner = _GroupedLinear.apply(rows, self.fc1, counts, self._fuse)
        outer = _WeightedActivation.apply(inner, weights, self._activation, self._is_gated)
        return _GroupedLinear.apply(outer, self.fc2, counts, self._fuse)  # type: ignore[no-any-return]
