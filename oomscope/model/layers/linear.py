"""The linear layers of a rank, in 16 bits or in fp8, with their parameters."""

from __future__ import annotations

from torch import nn

from oomscope.model.fp8.linear import Fp8ColumnParallelLinear, Fp8RowParallelLinear
from oomscope.model.fp8.quantized import Fp8Weight, fp8_parameter
from oomscope.model.fp8.recipe import Fp8Recipe
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear


def column_linear(
    rank: RankContext, name: str, blocks: tuple[int, ...], *, bias: bool, fp8: Fp8Recipe | None = None
) -> ColumnParallelLinear:
    """Return a layer [h] → ``blocks`` behind a norm; each block is split over the ranks."""
    weight = rank.split_rows(name, blocks, rank.config.model.hidden_size)
    zeros = rank.constant(0.0, weight.shape[0], tensor_parallel=True) if bias else None
    if fp8 is None:
        return ColumnParallelLinear(weight, zeros, rank.tp)
    weight, copies = _in_fp8(rank, weight, fp8)
    return Fp8ColumnParallelLinear(weight, zeros, rank.tp, copies)


def row_linear(
    rank: RankContext, name: str, columns: int, fp8: Fp8Recipe | None = None, *, keeps_input: bool = False
) -> RowParallelLinear:
    """Return a layer ``columns`` → [h]; ``keeps_input``: in 16 bits, as others do, where fp8 allows."""
    model = rank.config.model
    weight = rank.split_columns(name, model.hidden_size, columns)
    bias = rank.constant(0.0, model.hidden_size, sequence_parallel=True) if model.add_bias_linear else None
    if fp8 is None:
        return RowParallelLinear(weight, bias, rank.tp)
    weight, copies = _in_fp8(rank, weight, fp8)
    keeps_input = keeps_input and fp8.scaling != "delayed"
    return Fp8RowParallelLinear(weight, bias, rank.tp, copies, keeps_input=keeps_input)


def _in_fp8(rank: RankContext, weight: nn.Parameter, fp8: Fp8Recipe) -> tuple[nn.Parameter, Fp8Weight]:
    """Return what is trained, and what products read of it."""
    trained = fp8_parameter(weight, fp8) if rank.config.precision.fp8_param else weight
    return trained, Fp8Weight(trained, fp8, rank.observer)
