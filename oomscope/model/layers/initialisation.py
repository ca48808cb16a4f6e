"""New parameters, with the values that Megatron-Core gives them: N(0, std), zeros for biases, ones for norms.

On the CPU a weight is drawn whole from a generator seeded by its name, then cut, so that every split of the model
over ranks starts from the same values. On an accelerator each shard is drawn in place: nothing is allocated that
Megatron would not allocate.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.parallel.tensor_parallel import TensorParallel

_LARGEST_WHOLE_WEIGHT = 64 * 1024**2
"""Elements above which a weight is drawn shard by shard on the CPU as well."""


class Shard(NamedTuple):
    """Which part of a split matrix."""

    rank: int
    size: int


class Parameters:
    """Makes the parameters of one rank.

    Args:
        device: where they live.
        dtype: of all of them.
        seed: of the run.
        tp: how matrices are split.
        random: the rank's random numbers.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        tp: TensorParallel,
        random: ModelParallelRandom,
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._seed = seed
        self._tp = tp
        self._random = random

    def split_rows(self, name: str, blocks: Sequence[int], columns: int, *, std: float) -> nn.Parameter:
        """Return this rank's rows of a stack of matrices, each [rows, columns] and each split over the ranks.

        Q, K and V, or the two halves of a gated MLP, are such blocks.
        """
        weight = self._empty(sum(blocks) // self._tp.size, columns, tensor_parallel=True)
        weight.partition_dim = 0  # type: ignore[attr-defined]
        start = 0
        for index, rows in enumerate(blocks):
            shard = weight.detach().narrow(0, start, rows // self._tp.size)
            self._normal(shard, f"{name}.{index}", (rows, columns), dim=0, std=std)
            start += rows // self._tp.size
        return weight

    def split_columns(self, name: str, rows: int, columns: int, *, std: float) -> nn.Parameter:
        """Return this rank's columns of the matrix [rows, columns]."""
        weight = self._empty(rows, columns // self._tp.size, tensor_parallel=True)
        weight.partition_dim = 1  # type: ignore[attr-defined]
        self._normal(weight.detach(), name, (rows, columns), dim=1, std=std)
        return weight

    def whole(self, name: str, *shape: int, std: float, sequence_parallel: bool = False) -> nn.Parameter:
        """Return a weight that every rank holds alike; ``sequence_parallel`` as for ``constant``."""
        weight = self._empty(*shape, sequence_parallel=sequence_parallel and self._tp.sequence_parallel)
        self._normal(weight.detach(), name, shape, dim=None, std=std)
        return weight

    def experts(
        self, name: str, experts: range | int, shape: tuple[int, int], *, blocks: int, dim: int, tp: Shard, std: float
    ) -> nn.Parameter:
        """Return the matrices [len(experts), rows, columns] of the routed ``experts``, as far as this rank holds them.

        Of one expert, [rows, columns].

        ``allreduce`` is False on it: other ranks hold its replicas than those of dense weights (as upstream).

        Args:
            name: of the weight.
            experts: their numbers in the layer.
            shape: of one whole matrix.
            blocks: matrices that ``shape`` stacks along ``dim``, each of which is split over the ranks.
            dim: along which experts are split.
            tp: this rank's part of each.
            std: of the initial values.
        """
        rows, columns = (size // tp.size if axis == dim else size for axis, size in enumerate(shape))
        several = (len(experts),) if isinstance(experts, range) else ()
        weight = self._empty(*several, rows, columns, tensor_parallel=tp.size > 1)
        weight.allreduce = False  # type: ignore[attr-defined]
        weight.partition_dim = dim  # type: ignore[attr-defined]
        whole = torch.Size(size // blocks if axis == dim else size for axis, size in enumerate(shape))
        numbers = experts if isinstance(experts, range) else (experts,)
        for matrix, expert in zip(weight.detach().view(-1, rows, columns), numbers, strict=True):
            for index, block in enumerate(matrix.chunk(blocks, dim)):
                self._normal(block, f"{name}.{expert}.{index}", whole, dim=dim, std=std, tp=tp, differs=True)
        return weight

    def constant(
        self, value: float, *shape: int, sequence_parallel: bool = False, tensor_parallel: bool = False
    ) -> nn.Parameter:
        """Return a parameter filled with ``value``.

        Args:
            value: 0 for biases, 1 for norm weights.
            shape: on this rank.
            sequence_parallel: under sequence parallelism each rank sees only its rows' share of the gradient.
            tensor_parallel: ranks hold different parts.
        """
        parameter = self._empty(
            *shape,
            sequence_parallel=sequence_parallel and self._tp.sequence_parallel,
            tensor_parallel=tensor_parallel,
        )
        parameter.detach().fill_(value)
        return parameter

    def _empty(self, *shape: int, sequence_parallel: bool = False, tensor_parallel: bool = False) -> nn.Parameter:
        parameter = nn.Parameter(torch.empty(shape, dtype=self._dtype, device=self._device))
        parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
        parameter.tensor_model_parallel = tensor_parallel  # type: ignore[attr-defined]
        parameter.shared_embedding = False  # type: ignore[attr-defined]
        return parameter

    def _normal(
        self,
        shard: torch.Tensor,
        name: str,
        shape: tuple[int, ...],
        *,
        dim: int | None,
        std: float,
        tp: Shard | None = None,
        differs: bool = False,
    ) -> None:
        """Fill ``shard``, this rank's part along ``dim`` of the weight ``name`` of ``shape``.

        ``tp``: which part, of how many, if not that of the dense layers. ``differs``: other ranks hold other weights
        also where this one is not split.
        """
        part = tp or Shard(self._tp.rank, self._tp.size)
        elements = torch.Size(shape).numel()
        if self._device.type == "cpu" and elements <= _LARGEST_WHOLE_WEIGHT:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}:{name}".encode()))
            drawn = torch.empty(shape).normal_(0.0, std, generator=generator)
            shard.copy_(drawn if dim is None else drawn.chunk(part.size, dim)[part.rank])
        elif dim is None and not differs:
            shard.normal_(0.0, std)
        else:
            with self._random.fork():
                shard.normal_(0.0, std)
