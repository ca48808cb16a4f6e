"""The batches of a measured run: random tokens that depend on the seed and on nothing else.

A sample's tokens are the same however the batch is spread over replicas and microbatches, so that runs of different
parallelism can be compared number by number.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple, Protocol

import torch


class Batch(NamedTuple):
    """One microbatch: ``tokens`` and the ``labels`` that follow them, int64 [b, s]."""

    tokens: torch.Tensor
    labels: torch.Tensor


class Batches(Protocol):
    """Where a trainer gets its data."""

    def batch(self, iteration: int, index: int) -> Batch:
        """Return microbatch ``index`` of ``iteration``, counted over all replicas, on the host."""
        ...


class RandomTokens:
    """Uniformly random tokens; a label is the token that comes next."""

    def __init__(self, *, vocab_size: int, seq_length: int, micro_batch_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._shape = (micro_batch_size, seq_length + 1)
        self._seed = seed

    def batch(self, iteration: int, index: int) -> Batch:
        """Return microbatch ``index`` of ``iteration``."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}:{iteration}:{index}".encode()))
        tokens = torch.randint(self._vocab_size, self._shape, generator=generator)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
