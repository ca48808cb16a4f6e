"""Token ids, labels and masks one place further on, as multi-token prediction reads them at each depth.

Megatron-Core ``transformer/multi_token_prediction.py::roll_tensor``. Under context parallelism the last place of each
of a rank's two chunks comes from a neighbour: one element a sequence is sent each way.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from oomscope.model.parallel.context_parallel import ContextParallel


def shift_left(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return [b, s/c] with what stands at the next place of the whole sequence, and 0 at its end.

    Args:
        x: [b, s/c], this rank's two chunks of every sequence.
        cp: which chunks those are, and who has the next ones.
    """
    if cp.size == 1:
        rolled = torch.roll(x, -1, dims=-1)
        rolled.select(-1, -1).fill_(0)
        return rolled
    chunks = [torch.roll(chunk, -1, dims=-1) for chunk in x.chunk(2, dim=-1)]
    firsts = [chunk.select(-1, -1).contiguous() for chunk in chunks]
    for chunk, following in zip(chunks, _following(firsts, cp), strict=True):
        chunk.select(-1, -1).copy_(following)
    return torch.cat(chunks, dim=-1)


def _following(firsts: list[torch.Tensor], cp: ContextParallel) -> list[torch.Tensor]:
    """Return the first elements [b] of the chunks that follow this rank's two, given the first elements of its own.

    Chunk r is followed by the next rank's, chunk 2c - 1 - r by the previous rank's; at the fold by this rank's other.
    """
    following = [torch.zeros_like(first) for first in firsts]
    cp.observer.role("communication", following)
    exchanges: list[dist.P2POp] = []
    if cp.rank > 0:
        exchanges += _exchange(firsts[0], following[1], cp.rank - 1, cp)
    if cp.rank < cp.size - 1:
        exchanges += _exchange(firsts[1], following[0], cp.rank + 1, cp)
    else:
        following[0] = firsts[1]
    for work in dist.batch_isend_irecv(exchanges):
        work.wait()
    return following


def _exchange(sent: torch.Tensor, received: torch.Tensor, peer: int, cp: ContextParallel) -> list[dist.P2POp]:
    return [
        dist.P2POp(dist.isend, sent, group=cp.group, group_peer=peer),
        dist.P2POp(dist.irecv, received, group=cp.group, group_peer=peer),
    ]
