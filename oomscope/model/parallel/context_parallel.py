"""Which tokens of a sequence a context-parallel rank holds, and what it exchanges with the others.

A sequence is cut into 2c chunks and rank r of c takes chunks r and 2c - 1 - r, so that causal attention is as much
work on every rank (Megatron-Core ``utils.py::get_batch_on_this_cp_rank``, Transformer Engine's zig-zag order).
Everything but core attention sees n/c tokens; how attention sees the others is ``layers/context_attention.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist

from oomscope.config.schema import Config
from oomscope.model.base.observer import NullObserver, Observer
from oomscope.model.parallel.parallel_state import ParallelState

CommunicationType = Literal["p2p", "a2a", "all_gather", "a2a+p2p"]


@dataclass(frozen=True, kw_only=True)
class ContextParallel:
    """One rank's place in its context-parallel group, and how the group attends."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1
    communication: CommunicationType = "p2p"
    observer: Observer = field(default_factory=NullObserver)
    """Receives buffers of communication."""
    levels: tuple[ContextParallel, ContextParallel] | None = None
    """With ``a2a+p2p``, the neighbours that exchange heads, and the ring of the ranks at the same place among their
    neighbours. Neighbours hold together what one rank of a ring of that size would."""

    @property
    def chunks(self) -> tuple[int, int]:
        """The two chunks, of 2c, that this rank holds."""
        return self.rank, 2 * self.size - 1 - self.rank

    @property
    def chunk_of_place(self) -> list[int]:
        """The chunk at each place when the ranks' shards are put one after the other: first 0, then 2c - 1."""
        return [chunk for rank in range(self.size) for chunk in (rank, 2 * self.size - 1 - rank)]

    def positions(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return the positions [rows] in the whole sequence of the ``rows`` tokens that this rank holds."""
        if self.size == 1:
            return torch.arange(rows, device=device)
        return self.shard(torch.arange(rows * self.size, device=device), dim=0)

    def shard(self, x: torch.Tensor, *, dim: int) -> torch.Tensor:
        """Return a copy of this rank's tokens of ``x``, which has whole sequences along ``dim``; itself if alone."""
        if self.size == 1:
            return x
        chunks = x.chunk(2 * self.size, dim)
        return torch.cat([chunks[chunk] for chunk in self.chunks], dim)

    def send_on(self, sent: torch.Tensor, received: torch.Tensor, *, step: Literal[1, -1]) -> None:
        """Send ``sent`` to the rank ``step`` places on while ``received`` arrives from the one behind."""
        self.observer.role("communication", [received])
        operations = [
            dist.P2POp(dist.isend, sent, group=self.group, group_peer=(self.rank + step) % self.size),
            dist.P2POp(dist.irecv, received, group=self.group, group_peer=(self.rank - step) % self.size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def context_parallel(config: Config, state: ParallelState, observer: Observer) -> ContextParallel:
    """Return the rank's place in its context-parallel group."""
    levels = None
    if config.cp_comm_type == "a2a+p2p":
        neighbours, ring = (
            ContextParallel(**place._asdict(), observer=observer) for place in (state.cp_a2a, state.cp_p2p)
        )
        levels = (neighbours, ring)
    return ContextParallel(**state.cp._asdict(), communication=config.cp_comm_type, observer=observer, levels=levels)
