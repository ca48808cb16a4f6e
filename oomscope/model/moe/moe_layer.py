"""A mixture of experts in the place of the dense MLP: router, dispatch, routed experts, and experts that all share.

Megatron-Core ``moe/moe_layer.py::MoELayer`` and ``moe/experts.py``. Rows reach the experts sorted by expert. Routing
weights are applied between fc1 and fc2, so that fc2's output need not be kept (memory-efficient permutation). Under
expert tensor parallelism a rank holds 1/t of each expert's width, and fc2 leaves partial sums to the dispatcher.
Probabilities, visits and the map of the rows outlive the microbatch, until the next one (they are attributes of
Megatron-Core's dispatchers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from oomscope.model.base.device import computes
from oomscope.model.base.operations import Function
from oomscope.model.layers.mlp import MLP, Activation, activate, gated
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.memory.recompute import DiscardedOutput, checkpoint
from oomscope.model.moe.router import Router, balance_of
from oomscope.model.moe.token_dispatcher import TokenDispatcher, token_dispatcher
from oomscope.model.parallel.tensor_parallel import (
    Placeholders,
    TensorParallel,
    add_weight_gradient,
    column_parallel_linear,
)


class _GroupedLinear(Function):
    """rows [R, in] of E local experts, expert by expert, times their weights [E, out, in] → [R, out].

    Every product is written into its place. On a device without values none is run: the grouped kernel has workspaces
    of its own (``base/device.py``), and not those that torch's products would take.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weight: torch.Tensor, counts: list[int], placeholders: Placeholders | None
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.counts = counts
        ctx.placeholders = placeholders
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
        placeholders: Placeholders | None = ctx.placeholders
        main_grad: Any = getattr(weight, "main_grad", None) if placeholders is not None else None
        grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) if main_grad is None else None
        if computes(grad.device):
            for expert, (mine, x) in enumerate(zip(grad.split(ctx.counts), rows.split(ctx.counts), strict=True)):
                if grad_weight is None:
                    add_weight_gradient(main_grad[expert], mine, x)
                else:
                    torch.mm(mine.t(), x, out=grad_weight[expert])
        if grad_weight is None and placeholders is not None:
            placeholders.of(weight, experts=True)
        return grad_rows, grad_weight, None, None


def weighted_activation(
    x: torch.Tensor, weights: torch.Tensor, activation: Activation, *, is_gated: bool
) -> torch.Tensor:
    """Return act(x) · weight [R, f], or act(gate) · up · weight, of ``x`` [R, f or 2f] and ``weights`` [R].

    One kernel does so for SwiGLU alone; otherwise autograd keeps the output of the non-linearity as well, and the
    product lives in the wider of both formats until it is rounded to that of ``x``.

    Source: Megatron-Core ``transformer/moe/experts.py``, ``TEGroupedMLP.forward``; ``transformer/mlp.py``,
    ``MLP.forward`` with ``per_token_scale``.
    """
    if is_gated and activation == "silu":
        return gated(x, activation, weights)
    if is_gated:
        gate, up = x.chunk(2, dim=-1)
        return (activate(gate, activation) * up * weights.unsqueeze(-1)).to(x.dtype)
    return (activate(x, activation) * weights.unsqueeze(-1)).to(x.dtype)


class GroupedExperts(nn.Module):
    """All experts of a rank in one grouped product (Megatron-Core ``moe/experts.py::TEGroupedMLP``)."""

    def __init__(self, rank: RankContext, fc1: nn.Parameter, fc2: nn.Parameter) -> None:
        super().__init__()
        self.fc1 = fc1
        self.fc2 = fc2
        self._placeholders = rank.tp.placeholders
        self._activate = _activation_of(rank)
        self._recompute = "moe_act" in rank.config.recompute_modules
        self._offload = rank.offload

    def forward(self, rows: torch.Tensor, weights: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return the outputs [R, h] of ``rows`` [R, h], of which each expert has ``counts``."""

        def linear(x: torch.Tensor, weight: nn.Parameter) -> torch.Tensor:
            return _GroupedLinear.apply(x, weight, counts, self._placeholders)  # type: ignore[no-any-return]

        inner = self._offload.run("expert_fc1", linear, rows, self.fc1)
        if not (self._recompute and self.training):
            return linear(self._offload.run("moe_act", self._activate, inner, weights), self.fc2)
        activation = DiscardedOutput(self._activate)
        out = linear(self._offload.run("moe_act", activation.run, inner, weights), self.fc2)
        activation.discard(refill_before=out)
        return out


class SequentialExperts(nn.Module):
    """One expert after the other, their outputs joined by a copy (Megatron-Core ``moe/experts.py::SequentialMLP``)."""

    def __init__(self, rank: RankContext, fc1: Sequence[nn.Parameter], fc2: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.fc1 = nn.ParameterList(fc1)
        self.fc2 = nn.ParameterList(fc2)
        self._activate = _activation_of(rank)
        self._linear = TensorParallel(placeholders=rank.tp.placeholders)

    def forward(self, rows: torch.Tensor, weights: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return the outputs [R, h] of ``rows`` [R, h], of which each expert has ``counts``."""
        shares = zip(rows.split(counts), weights.split(counts), self.fc1, self.fc2, strict=True)
        outputs = [self._run(*share) for share in shares]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _run(self, rows: torch.Tensor, weights: torch.Tensor, fc1: nn.Parameter, fc2: nn.Parameter) -> torch.Tensor:
        outer = self._activate(column_parallel_linear(rows, fc1, None, self._linear), weights)
        return column_parallel_linear(outer, fc2, None, self._linear)


def _activation_of(rank: RankContext) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    model = rank.config.model
    return partial(weighted_activation, activation=model.activation_func, is_gated=model.gated_linear_unit)


def make_experts(rank: RankContext, name: str) -> GroupedExperts | SequentialExperts:
    """Return the routed experts that this rank holds."""
    model, h, f = rank.config.model, rank.config.model.hidden_size, rank.config.expert_ffn_size
    halves, local = 2 if model.gated_linear_unit else 1, (model.num_moe_experts or 1) // rank.state.ep.size
    mine = range(rank.state.ep.rank * local, (rank.state.ep.rank + 1) * local)

    def fc1(experts: range | int) -> nn.Parameter:
        return rank.experts(f"{name}.fc1", experts, (halves * f, h), blocks=halves, dim=0)

    def fc2(experts: range | int) -> nn.Parameter:
        return rank.experts(f"{name}.fc2", experts, (h, f), blocks=1, dim=1)

    if model.moe_grouped_gemm:
        return GroupedExperts(rank, fc1(mine), fc2(mine))
    return SequentialExperts(rank, [fc1(expert) for expert in mine], [fc2(expert) for expert in mine])


class MoE(nn.Module):
    """The experts of one layer that this rank holds, or its parts of them.

    Its losses count once however often it ``runs`` in a microbatch (Megatron-Core ``moe/router.py``).
    """

    def __init__(self, rank: RankContext, name: str, *, runs: int = 1) -> None:
        super().__init__()
        config, model, state = rank.config, rank.config.model, rank.state
        experts, shared = model.num_moe_experts or 1, model.moe_shared_expert_intermediate_size
        router = rank.whole(f"{name}.router", experts, model.hidden_size, sequence_parallel=True)
        self.router = Router(router, model, balance_of(config, state, runs=runs))
        self.experts = make_experts(rank, name)
        self.shared = None if shared is None else MLP(rank, f"{name}.shared", shared)
        self._rank = rank
        self._recompute = "moe" in config.recompute_modules
        self._recompute_shared = "shared_experts" in config.recompute_modules
        self._dispatcher: TokenDispatcher | None = None
        """Dispatcher of the last microbatch: what it knows of the routing stays until the next one is dispatched."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from [s/σ, b, h]."""
        if self._recompute and self.training:
            return checkpoint(self._run, self._rank.random, hidden)
        return self._run(hidden)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        shared = self._run_shared(hidden)
        x = hidden.reshape(-1, hidden.shape[-1])
        self._dispatcher = dispatcher = token_dispatcher(
            self.router(hidden), self._rank.config.model, self._rank.state, self._rank.scratch
        )
        out = dispatcher.combine(self.experts(*dispatcher.dispatch(x))).view(hidden.shape)
        return out if shared is None else out + shared

    def _run_shared(self, hidden: torch.Tensor) -> torch.Tensor | None:
        if self.shared is None:
            return None
        if self._recompute_shared and self.training:
            return checkpoint(self.shared, self._rank.random, hidden)
        return self.shared(hidden)  # type: ignore[no-any-return]
