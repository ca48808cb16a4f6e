"""What all modules of one rank share, and how they make their parameters.

New parameters have the values that Megatron-Core gives them: N(0, std), zeros for biases, ones for norms. On the CPU a
weight is drawn whole from a generator seeded by its name, then cut, so that every split of the model over ranks starts
from the same values. On an accelerator each shard is drawn in place: nothing is allocated that Megatron would not
allocate.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import nn

from oomscope.config.schema import Config
from oomscope.model.base.device import MemoryBuffer
from oomscope.model.base.observer import Observer
from oomscope.model.base.random import ModelParallelRandom
from oomscope.model.fp8.recipe import fp8_recipe
from oomscope.model.layers.rotary import rotary_table
from oomscope.model.memory.offload import ModuleOffload
from oomscope.model.parallel.context_parallel import context_parallel
from oomscope.model.parallel.parallel_state import ParallelState, Place
from oomscope.model.parallel.tensor_parallel import Placeholders, TensorParallel

INIT_STD = 0.02
"""Megatron-Core ``init_method_std``."""
_LARGEST_WHOLE_WEIGHT = 64 * 1024**2
"""Elements above which a weight is drawn shard by shard on the CPU as well."""


class RankContext:
    """What all modules of one model chunk share.

    It shares scratch memory, random numbers and the offload of single modules with ``beside``, another chunk of its
    rank.

    Raises:
        ConfigError: the card lacks the fp8 recipe.
    """

    def __init__(
        self,
        config: Config,
        state: ParallelState,
        *,
        device: torch.device,
        dtype: torch.dtype,
        observer: Observer,
        beside: RankContext | None = None,
    ) -> None:
        self.config = config
        self.state = state
        self.device = device
        self.dtype = dtype
        self.observer = observer
        if beside is None:
            self.scratch = MemoryBuffer(observer)
            self.tp = TensorParallel(
                **state.tp._asdict(),
                sequence_parallel=config.parallel.sequence_parallel and state.tp.size > 1,
                placeholders=Placeholders(observer) if config.precision.gradient_accumulation_fusion else None,
                buffer=self.scratch if config.model.transformer_impl == "local" else None,
            )
            seed = config.probe.seed + 100 * state.pp.rank  # Megatron-LM initialize.py: another seed for each stage
            self.random = ModelParallelRandom(device, seed=seed, tp_rank=state.tp.rank, tp_size=state.tp.size)
            self.offload = ModuleOffload(config, pp_rank=state.pp.rank, device=device)
        else:
            self.scratch, self.tp, self.random, self.offload = beside.scratch, beside.tp, beside.random, beside.offload
        self.cp = context_parallel(config, state, observer)
        self.recipe = fp8_recipe(config, device)
        self.fused_norms = config.model.transformer_impl == "transformer_engine"
        """Whether norms belong to the linear layers behind them (Transformer Engine's specification)."""
        latent = config.model.multi_latent_attention
        positions = self.cp.positions(config.data.seq_length // self.cp.size, device)
        width = config.model.qk_pos_emb_head_dim if latent else config.head_dim
        rotates = latent or config.model.position_embedding_type == "rope"
        self.rotary = rotary_table(positions, width, config.model.rotary_base) if rotates else None

    def split_rows(self, name: str, blocks: Sequence[int], columns: int) -> nn.Parameter:
        """Return this rank's rows of a stack of matrices, each [rows, columns] and each split over the ranks.

        Q, K and V, or the two halves of a gated MLP, are such blocks.
        """
        weight = self._empty(sum(blocks) // self.tp.size, columns, tensor_parallel=True)
        weight.partition_dim = 0  # type: ignore[attr-defined]
        start = 0
        for index, rows in enumerate(blocks):
            shard = weight.detach().narrow(0, start, rows // self.tp.size)
            self._normal(shard, f"{name}.{index}", (rows, columns), dim=0, std=INIT_STD)
            start += rows // self.tp.size
        return weight

    def split_columns(self, name: str, rows: int, columns: int) -> nn.Parameter:
        """Return this rank's columns of the matrix [rows, columns]."""
        weight = self._empty(rows, columns // self.tp.size, tensor_parallel=True)
        weight.partition_dim = 1  # type: ignore[attr-defined]
        self._normal(weight.detach(), name, (rows, columns), dim=1, std=self._scaled_std)
        return weight

    def whole(self, name: str, *shape: int, sequence_parallel: bool = False) -> nn.Parameter:
        """Return a weight that every rank holds alike; ``sequence_parallel`` as for ``constant``."""
        weight = self._empty(*shape, sequence_parallel=sequence_parallel and self.tp.sequence_parallel)
        self._normal(weight.detach(), name, shape, dim=None, std=INIT_STD)
        return weight

    def experts(
        self, name: str, experts: range | int, shape: tuple[int, int], *, blocks: int, dim: int
    ) -> nn.Parameter:
        """Return this rank's part of the matrices [len(experts), rows, columns] of the routed ``experts``.

        Of one expert, [rows, columns]. ``shape`` is that of one whole matrix, which stacks ``blocks`` along ``dim``,
        each of them split over the ranks: 0 of the matrix that enters an expert, 1 of that which leaves it. The weight
        has ``allreduce`` False: other ranks hold its replicas than those of dense weights (as upstream).
        """
        tp = self.state.expert_tp
        std = self._scaled_std if dim == 1 else INIT_STD
        rows, columns = (size // tp.size if axis == dim else size for axis, size in enumerate(shape))
        several = (len(experts),) if isinstance(experts, range) else ()
        weight = self._empty(*several, rows, columns, tensor_parallel=tp.size > 1)
        weight.allreduce = False  # type: ignore[attr-defined]
        weight.partition_dim = dim  # type: ignore[attr-defined]
        whole = torch.Size(size // blocks if axis == dim else size for axis, size in enumerate(shape))
        numbers = experts if isinstance(experts, range) else (experts,)
        for matrix, expert in zip(weight.detach().view(-1, rows, columns), numbers, strict=True):
            for index, block in enumerate(matrix.chunk(blocks, dim)):
                self._normal(block, f"{name}.{expert}.{index}", whole, dim=dim, std=std, tp=tp)
        return weight

    def constant(
        self, value: float, *shape: int, sequence_parallel: bool = False, tensor_parallel: bool = False
    ) -> nn.Parameter:
        """Return a parameter filled with ``value``; ``sequence_parallel`` if its gradient is of a rank's rows alone."""
        parameter = self._empty(
            *shape,
            sequence_parallel=sequence_parallel and self.tp.sequence_parallel,
            tensor_parallel=tensor_parallel,
        )
        parameter.detach().fill_(value)
        return parameter

    @property
    def _scaled_std(self) -> float:
        """Standard deviation of what is added to the residual stream (Megatron-Core ``scaled_init_method_normal``)."""
        return INIT_STD / math.sqrt(2.0 * self.config.model.num_layers)

    def _empty(self, *shape: int, sequence_parallel: bool = False, tensor_parallel: bool = False) -> nn.Parameter:
        parameter = nn.Parameter(torch.empty(shape, dtype=self.dtype, device=self.device))
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
        tp: Place | None = None,
    ) -> None:
        """Fill ``shard``, this rank's part along ``dim`` of the weight ``name`` of ``shape``.

        ``tp``: which part of an expert; other ranks hold other experts also where this one is not split.
        """
        part = tp or self.state.tp
        elements = torch.Size(shape).numel()
        if self.device.type == "cpu" and elements <= _LARGEST_WHOLE_WEIGHT:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.config.probe.seed}:{name}".encode()))
            drawn = torch.empty(shape).normal_(0.0, std, generator=generator)
            shard.copy_(drawn if dim is None else drawn.chunk(part.size, dim)[part.rank])
        elif dim is None:
            shard.normal_(0.0, std)
        else:
            with self.random.fork():
                shard.normal_(0.0, std)
