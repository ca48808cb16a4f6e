"""From tokens to the first hidden state: a word table split along the vocabulary, positions, dropout.

Each rank looks up the words that it holds and the sum over the ranks is the embedding (Shoeybi et al. 2019,
section 3). With sequence parallelism that sum leaves each rank its rows only; learned positions are added to the
whole sequence first, as in Megatron-Core ``language_model_embedding.py``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from oomscope.model.base.random import dropout
from oomscope.model.layers.rank_context import RankContext
from oomscope.model.parallel.tensor_parallel import (
    TensorParallel,
    reduce_from_region,
    reduce_scatter_to_sequence,
    scatter_to_sequence,
)


def vocabulary(rank: RankContext, name: str) -> nn.Parameter:
    """Return a matrix with a row for each word of this rank, [V/t, h]: a word table or an output layer."""
    weight = rank.split_rows(name, (rank.config.padded_vocab_size,), rank.config.model.hidden_size)
    weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]
    return weight


class VocabParallelEmbedding(nn.Module):
    """The rows [V/t, h] of the word table that this rank holds."""

    def __init__(self, weight: nn.Parameter, tp: TensorParallel) -> None:
        super().__init__()
        self.weight = weight
        self._tp = tp

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return this rank's part [s, b, h] of the embedding of ``tokens`` [s, b]; the sum over ranks is whole."""
        if self._tp.size == 1:
            return functional.embedding(tokens, self.weight)
        rows = self.weight.shape[0]
        local = tokens - self._tp.rank * rows
        elsewhere = (local < 0) | (local >= rows)
        words = functional.embedding(local.masked_fill_(elsewhere, 0), self.weight)
        return words.masked_fill_(elsewhere.unsqueeze(-1), 0.0)


class Embedding(nn.Module):
    """Words and, where they are learned, positions [max positions, h].

    It is the first stage's; multi-token prediction has a copy of it on the last.
    """

    def __init__(self, rank: RankContext) -> None:
        super().__init__()
        model = rank.config.model
        learned = model.position_embedding_type == "learned_absolute"
        rows = model.max_position_embeddings or rank.config.data.seq_length
        positions = rank.whole("embedding.positions", rows, model.hidden_size) if learned else None
        words = vocabulary(rank, "embedding.words")
        tied = model.share_embeddings_and_output_weights or model.mtp_num_layers is not None
        words.shared_embedding = tied  # type: ignore[attr-defined]
        self.words = VocabParallelEmbedding(words, rank.tp)
        self.positions = positions
        self._dropout_p = model.hidden_dropout
        self._tp = rank.tp
        self._cp = rank.cp
        self._random = rank.random

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden state [s/σ, b, h] of ``tokens`` [b, s/c]."""
        hidden = self._sequence(self.words(tokens.t().contiguous()))
        dropout_p = self._dropout_p if self.training else 0.0
        if self._tp.sequence_parallel:
            with self._random.fork():
                return dropout(hidden, dropout_p)
        return dropout(hidden, dropout_p)

    def _sequence(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks of ``partial`` [s, b, h], with positions, as this rank holds it."""
        if self.positions is None and self._tp.sequence_parallel:
            return reduce_scatter_to_sequence(partial, self._tp)
        words = reduce_from_region(partial, self._tp)
        if self.positions is None:
            return words
        places = self._cp.positions(words.shape[0], words.device)
        hidden = words + functional.embedding(places, self.positions).unsqueeze(1)
        return scatter_to_sequence(hidden, self._tp) if self._tp.sequence_parallel else hidden
