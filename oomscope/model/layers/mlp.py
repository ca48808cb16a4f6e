"""The MLP: fc1, non-linearity (gated or not), fc2. Only fc1's output and fc2's input are kept.

A gate is one own function that keeps fc1's output [s, b, 2f/t] and computes the non-linearity again in backward,
as Megatron's fused SwiGLU does; not fused, both factors of the product are kept too (Megatron-Core ``mlp.py``, glu).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from oomscope.model.base.operations import Function
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.layers.linear import column_linear, row_linear
from oomscope.model.layers.rank_context import RankContext

Activation = Literal["gelu", "silu", "relu", "squared_relu"]


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return act(``x``), which autograd differentiates."""
    if activation == "squared_relu":
        return _SquaredReLU.apply(x)  # type: ignore[no-any-return]
    return getattr(functional, activation)(x)  # type: ignore[no-any-return]


def activate_into(out: torch.Tensor, x: torch.Tensor, activation: Activation) -> None:
    """Write act(``x``) into ``out``."""
    match activation:
        case "gelu":
            torch.ops.aten.gelu.out(x, out=out)
        case "silu":
            torch.ops.aten.silu.out(x, out=out)
        case "relu" | "squared_relu":
            torch.clamp_min(x, 0, out=out)
            if activation == "squared_relu":
                out.square_()


def differentiate_in_place(grad: torch.Tensor, x: torch.Tensor, activation: Activation) -> None:
    """Multiply ``grad`` by act'(``x``)."""
    match activation:
        case "gelu":
            torch.ops.aten.gelu_backward.grad_input(grad, x, grad_input=grad)
        case "silu":
            torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=grad)
        case "relu" | "squared_relu":
            torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
            if activation == "squared_relu":
                grad.mul_(x).mul_(2)


class _SquaredReLU(Function):
    """One compiled kernel each way, which keeps its input (Megatron-Core ``activations.py``, ``squared_relu``)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        activate_into(out, x, "squared_relu")
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        grad_x = torch.clamp_min(x, 0)
        return grad_x.mul_(grad).mul_(2)


class _Gate(Function):
    """With weights [R] of rows: Megatron-Core ``fusions/fused_bias_swiglu.py``, ``WeightedSwiGLUFunction``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor | None, activation: Activation) -> torch.Tensor:
        ctx.save_for_backward(x, weights)
        ctx.activation = activation
        gate, up = x.chunk(2, dim=-1)
        out = torch.empty(gate.shape, dtype=x.dtype, device=x.device)
        activate_into(out, gate, activation)
        out.mul_(up)
        return out if weights is None else out.mul_(weights.unsqueeze(-1))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        x, weights = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_gate, grad_up = grad_x.chunk(2, dim=-1)  # the second half holds the output until it is needed
        activate_into(grad_up, gate, ctx.activation)
        grad_weights = None
        if weights is not None:
            grad_weights = _row_products(grad, grad_up.mul_(up)).to(weights.dtype)
            activate_into(grad_up, gate, ctx.activation)
        grad_up.mul_(grad)
        torch.mul(grad, up, out=grad_gate)
        if weights is not None:
            grad_x.mul_(weights.unsqueeze(-1))
        differentiate_in_place(grad_gate, gate, ctx.activation)
        return grad_x, grad_weights, None


def _row_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the inner product of each pair of rows, without a temporary of their size."""
    return torch.bmm(x.unsqueeze(1), y.unsqueeze(2)).flatten()


def gated(x: torch.Tensor, activation: Activation, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return act(gate) · up (· weight) […, f] of ``x`` = [gate | up] […, 2f]. Saves ``x`` and the weights only."""
    return _Gate.apply(x, weights, activation)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """fc1 [s/σ, b, h] → [s, b, f/t], or 2f/t when gated, the non-linearity, fc2 → [s/σ, b, h]; ``width`` is f."""

    def __init__(self, rank: RankContext, name: str, width: int, fp8: Fp8Recipe | None = None) -> None:
        super().__init__()
        model = rank.config.model
        self._activation: Activation = model.activation_func
        self._is_gated = model.gated_linear_unit
        self._is_fused = rank.config.fuses_gate
        blocks = (width, width) if self._is_gated else (width,)
        self.fc1 = column_linear(rank, f"{name}.fc1", blocks, bias=model.add_bias_linear, fp8=fp8)
        self.fc2 = row_linear(rank, f"{name}.fc2", width, fp8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        return self.fc2(self._activate(self.fc1(x)))  # type: ignore[no-any-return]

    def _activate(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_gated:
            return activate(x, self._activation)
        if self._is_fused:
            return gated(x, self._activation)
        gate, up = x.chunk(2, dim=-1)
        return activate(gate, self._activation) * (up + 0.0)  # glu_linear_offset, which makes a copy
