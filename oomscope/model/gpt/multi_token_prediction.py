"""Multi-token prediction: layers behind the last one that guess, depth by depth, the token after the next.

DeepSeek-V3 (arXiv:2412.19437, section 2.2), as in Megatron-Core ``transformer/multi_token_prediction.py``. A depth
joins the norm of the hidden state with the norm of the next token's embedding, projects the two back to h and runs one
layer more of the kind of the model's last. Each depth reads token ids, labels and masks one place further on
(``roll_tensor`` of the same file); under context parallelism chunks get their last place from a neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from oomscope.model.gpt.transformer_layer import TransformerLayer
from oomscope.model.layers.norms import make_norm
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.memory.layer_groups import recomputes_predictions
from oomscope.model.memory.recompute import checkpoint
from oomscope.model.moe.router import LossAutoScaler
from oomscope.model.parallel.context_parallel import ContextParallel
from oomscope.model.parallel.tensor_parallel import ColumnParallelLinear, gather_columns, view_of_sequence


def shift_left(x: torch.Tensor, cp: ContextParallel) -> torch.Tensor:
    """Return ``x`` [b, s/c], two chunks of every sequence, moved on by one place of the whole; 0 at its end."""
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


class PredictionLayer(nn.Module):
    """One depth: norms of embedding and hidden state, a projection [2h] → [h/t], a layer, a final norm.

    The layer is of the kind of the model's last (Megatron-LM ``gpt_builders.py``). ``full`` recomputation with
    ``uniform`` keeps only the hidden state and the embedding.
    """

    def __init__(self, rank: RankContext, depth: int, *, runs: int) -> None:
        super().__init__()
        h, name, last = rank.config.model.hidden_size, f"mtp.{depth}", rank.config.model.num_layers - 1
        self.enorm = make_norm(rank, h)
        self.hnorm = make_norm(rank, h)
        self.eh_proj = ColumnParallelLinear(rank.split_rows(f"{name}.eh_proj", (h,), 2 * h), None, rank.tp)
        self.layer = TransformerLayer(rank, last, f"{name}.layer", runs=runs)
        self.final_norm = make_norm(rank, h)
        self._tp = rank.tp
        self._random = rank.random
        self._recompute = recomputes_predictions(rank.config)

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        """Return [s/σ, b, h] from the ``hidden`` state of the depth before and the ``embedded`` tokens, of the same."""
        if self._recompute and self.training:
            return checkpoint(self._run, self._random, hidden, embedded, *mask)
        return self._run(hidden, embedded, *mask)

    def _run(self, hidden: torch.Tensor, embedded: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        with self._random.fork() if self._tp.sequence_parallel else nullcontext():
            hidden = self.layer(self._join(hidden, embedded), *mask)
        return self.final_norm(hidden)  # type: ignore[no-any-return]

    def _join(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        embedded = self.enorm(embedded)
        joined = torch.cat((embedded, self.hnorm(hidden)), dim=-1)
        return view_of_sequence(gather_columns(self.eh_proj(joined), self._tp), self._tp)


class MultiTokenPrediction(nn.Module):
    """All depths, each with a layer of its own or one for all (``mtp_use_repeated_layer``), and their losses."""

    def __init__(self, rank: RankContext) -> None:
        super().__init__()
        model = rank.config.model
        self._depths = model.mtp_num_layers or 0
        layers, runs = (1, self._depths) if model.mtp_use_repeated_layer else (self._depths, 1)
        self.layers = nn.ModuleList(PredictionLayer(rank, depth, runs=runs) for depth in range(layers))
        self._weight = model.mtp_loss_scaling_factor / max(self._depths, 1)
        self._scale = 1 / rank.config.num_microbatches
        self._cp = rank.cp

    def forward(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        embedding: Callable[[torch.Tensor], torch.Tensor],
        *mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the states of the model and of each of the D depths, one after the other: [(1 + D)·s/σ, b, h].

        ``hidden`` is what the model's final norm returned, and ``embedding`` makes [s/σ, b, h] of ``tokens`` [b, s/c].
        """
        states = [hidden]
        for depth in range(self._depths):
            tokens = shift_left(tokens, self._cp)
            hidden = self.layers[depth % len(self.layers)](hidden, embedding(tokens), *mask)
            states.append(hidden)
        return torch.cat(states)

    def add_losses(
        self,
        states: torch.Tensor,
        labels: torch.Tensor,
        *,
        output_layer: Callable[[torch.Tensor], torch.Tensor],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return the model's own state [s/σ, b, h]; its gradient brings those of the depths' losses with it.

        The logits of a depth live until those of the next are made, and what its loss keeps of them until backward
        (``process_mtp_loss`` and ``MTPLossAutoScaler`` of the same file). A depth's mean is over the tokens of this
        rank that it has labels for.
        """
        hidden, *further = states.chunk(1 + self._depths)
        counted = torch.ones(labels.shape, dtype=torch.float32, device=labels.device)
        for state in further:
            logits = output_layer(state)
            labels, counted = shift_left(labels, self._cp), shift_left(counted, self._cp)
            losses = counted.t() * loss(logits, labels.t())
            hidden = LossAutoScaler.apply(hidden, self._weight * losses / counted.sum().clamp(min=1), self._scale)
        return hidden
