"""Random batches: the same however they are spread, and shifted by one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from oomscope.model.data import RandomTokens

small = st.integers(1, 50)


@given(small, small, st.integers(1, 4), st.integers(0, 2**32), st.integers(0, 100), st.integers(0, 100))
def test_batches(vocab: int, length: int, size: int, seed: int, iteration: int, index: int) -> None:
    data = RandomTokens(vocab_size=vocab, seq_length=length, micro_batch_size=size, seed=seed)
    batch = data.batch(iteration, index)
    assert batch.tokens.shape == batch.labels.shape == (size, length)
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64
    assert batch.tokens.is_contiguous()
    assert batch.labels.is_contiguous()
    assert all(0 <= int(part.min()) <= int(part.max()) < vocab for part in batch)
    assert torch.equal(batch.tokens[:, 1:], batch.labels[:, :-1])


def test_the_seed_the_iteration_and_the_index_decide() -> None:
    def tokens(seed: int, iteration: int, index: int) -> torch.Tensor:
        data = RandomTokens(vocab_size=1000, seq_length=32, micro_batch_size=1, seed=seed)
        data.batch(9, 9)
        return data.batch(iteration, index).tokens

    reference = tokens(1, 2, 3)
    assert torch.equal(tokens(1, 2, 3), reference)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)):
        assert not torch.equal(tokens(*other), reference)
