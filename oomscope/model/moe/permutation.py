"""Rows for the visits of tokens to experts, sorted by expert, and their sum for each token.

Written as Megatron-Core ``moe/moe_utils.py`` (``permute``, ``unpermute``) writes it, because the sort's own indices
are what backward keeps; the fused kernels of Transformer Engine (``pytorch/permutation.py``) keep one map.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from oomscope.model.base.device import computes
from oomscope.model.base.operations import Function
from oomscope.model.moe.routing import Routing


class RowMap(NamedTuple):
    """Which token each row came from."""

    places: torch.Tensor
    """Rows, int64 [r]; of fused kernels int32 [n, 2E + 1], whose first E columns hold the row of a visit, or -1."""
    fused: bool


def permute_with_probabilities(
    x: torch.Tensor, routing: Routing, rows: int, *, fused: bool, padded: bool
) -> tuple[torch.Tensor, torch.Tensor, RowMap]:
    """Return the rows [r, h] of tokens ``x`` [n, h], their weights [r], and where they came from."""
    if fused:
        out, weights, index = _FusedPermute.apply(x, routing.probabilities, routing.visits, rows)
        return out, weights, RowMap(index, fused=True)
    probabilities = routing.probabilities.t().contiguous().view(-1)
    if padded:
        tokens, places = _sort_padded(routing.visits, rows)
    else:
        places = _sort(routing.visits, rows)
        tokens = places % x.shape[0]
    return _Permute.apply(x, tokens), probabilities.index_select(0, places), RowMap(tokens, fused=False)


def permute(x: torch.Tensor, visits: torch.Tensor, rows: int, *, fused: bool) -> tuple[torch.Tensor, RowMap]:
    """Return the rows [r, h] of tokens ``x`` [n, h] and where they came from."""
    if fused:
        out, _, index = _FusedPermute.apply(x, None, visits, rows)
        return out, RowMap(index, fused=True)
    tokens = _sort(visits, rows) % x.shape[0]
    return _Permute.apply(x, tokens), RowMap(tokens, fused=False)


def unpermute(rows: torch.Tensor, source: RowMap, tokens: int) -> torch.Tensor:
    """Return the sum [n, h] of the rows [r, h] of each of n ``tokens``; weights were applied inside the experts."""
    kernel = _FusedUnpermute if source.fused else _Unpermute
    return kernel.apply(rows, source.places, tokens)  # type: ignore[no-any-return]


def select_probabilities(routing: Routing, rows: int) -> torch.Tensor:
    """Return the weights [r] of visits, sorted by expert (``torch.masked_select``, which keeps both operands)."""
    return _Select.apply(  # type: ignore[no-any-return]
        routing.probabilities.t().contiguous(), routing.visits.t().contiguous(), rows
    )


def _sort(visits: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the places of ``rows`` visits in [E, n], flattened: a view of the indices of all places."""
    return visits.t().contiguous().view(-1).argsort(descending=True, stable=True)[:rows]


def _sort_padded(visits: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of ``rows`` visits and their places in [E, n], flattened, where all experts have as many."""
    n, experts = visits.shape
    order = visits.to(torch.int8).t().contiguous().argsort(dim=-1, descending=True, stable=True)
    tokens = order[:, : rows // experts].contiguous()
    places = torch.arange(experts, device=visits.device).unsqueeze(-1) * n + tokens
    return tokens.view(-1), places.view(-1)


class _Permute(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = x.shape
        return x.index_select(0, tokens)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (tokens,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_add_(0, tokens, grad), None


class _Unpermute(Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(index)
        return rows.new_zeros((tokens, rows.shape[1])).index_add_(0, index, rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


class _Select(Function):
    @staticmethod
    def forward(ctx: Any, probabilities: torch.Tensor, visits: torch.Tensor, rows: int) -> torch.Tensor:
        ctx.save_for_backward(probabilities, visits)
        if not computes(visits.device):
            return probabilities.new_empty(rows)
        return probabilities.masked_select(visits)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        probabilities, visits = ctx.saved_tensors
        grad_probabilities = torch.zeros_like(probabilities)
        if computes(visits.device):
            grad_probabilities.masked_scatter_(visits, grad)
        return grad_probabilities, None, None


class _FusedPermute(Function):
    """Allocates what the kernel allocates; where there are values it is put together from the unfused operations."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, probabilities: torch.Tensor | None, visits: torch.Tensor, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n, experts = visits.shape
        row_map = torch.empty((n, 2 * experts + 1), dtype=torch.int32, device=x.device)
        out = x.new_empty((rows, x.shape[1]))
        weights = x.new_empty(0) if probabilities is None else probabilities.new_empty(rows)
        if computes(x.device):
            numbers = visits.t().reshape(-1).cumsum(0).view(experts, n).t()
            row_map[:, :experts] = torch.where(visits, numbers - 1, -1)
            tokens, of_expert = _sources(row_map, rows)
            torch.index_select(x, 0, tokens, out=out)
            if probabilities is not None:
                weights.copy_(probabilities[tokens, of_expert])
        ctx.save_for_backward(row_map)
        ctx.shape, ctx.weighted = x.shape, probabilities is not None
        ctx.mark_non_differentiable(row_map)
        return out, weights, row_map

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, grad_weights: torch.Tensor, _: None
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        (row_map,) = ctx.saved_tensors
        grad_x = grad.new_zeros(ctx.shape)
        grad_probabilities = None
        if ctx.weighted:
            grad_probabilities = grad_weights.new_zeros((row_map.shape[0], row_map.shape[1] // 2))
        if computes(grad.device):
            tokens, experts = _sources(row_map, grad.shape[0])
            grad_x.index_add_(0, tokens, grad)
            if grad_probabilities is not None:
                grad_probabilities[tokens, experts] = grad_weights
        return grad_x, grad_probabilities, None, None


class _FusedUnpermute(Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, row_map: torch.Tensor, tokens: int) -> torch.Tensor:
        ctx.save_for_backward(row_map)
        ctx.rows = rows.shape[0]
        out = rows.new_zeros((tokens, rows.shape[1]))
        return out.index_add_(0, _sources(row_map, ctx.rows)[0], rows) if computes(rows.device) else out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (row_map,) = ctx.saved_tensors
        grad_rows = grad.new_empty((ctx.rows, grad.shape[1]))
        if computes(grad.device):
            torch.index_select(grad, 0, _sources(row_map, ctx.rows)[0], out=grad_rows)
        return grad_rows, None, None


def _sources(row_map: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token and expert of each row of a fused map, int64 [r]."""
    places = row_map[:, : row_map.shape[1] // 2]
    tokens, experts = (places >= 0).nonzero(as_tuple=True)
    order = places[tokens, experts].long()
    of_row = [source.new_empty(rows).index_copy_(0, order, source) for source in (tokens, experts)]
    return of_row[0], of_row[1]
