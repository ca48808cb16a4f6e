"""What two ranks do together that training on two ranks (``test_parallel_parity.py``) does not hold."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed import group

from oomscope.config.schema import OptimizerConfig
from oomscope.model.gpt.multi_token_prediction import shift_left
from oomscope.model.optimizer.muon import Matrix, Muon
from oomscope.model.parallel.context_parallel import ContextParallel
from tests.ranks import run_ranks


def muon_gathers_shards_unless_blockwise(rank: int) -> None:
    def stepped(grad: torch.Tensor, matrix: Matrix, mode: str = "duplicated") -> torch.Tensor:
        param = torch.zeros_like(grad)
        param.grad = grad
        config = OptimizerConfig(optimizer="muon", muon_fp32_matmul_prec="high", muon_tp_mode=mode, lr=1.0)
        Muon([{"params": [param], "matrices": [matrix], "weight_decay": 0.0}], config).step()
        return param

    alone = Matrix(None, 1, 0, None)
    whole = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for dim in (0, 1):
        part = whole.chunk(2, dim)[rank].contiguous()
        split = Matrix(group.WORLD, 2, rank, dim)
        of_whole = stepped(whole, alone).chunk(2, dim)[rank]
        torch.testing.assert_close(stepped(part, split), of_whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(stepped(part, split, "blockwise"), stepped(part, alone), atol=1e-5, rtol=1e-5)


def tokens_shift_as_the_whole_sequence_does(rank: int) -> None:
    whole, cp = torch.arange(1, 49).view(3, 16), ContextParallel(group=group.WORLD, rank=rank, size=2)
    expected = cp.shard(shift_left(whole, ContextParallel()), dim=1)
    assert torch.equal(shift_left(cp.shard(whole, dim=1), cp), expected)


def check(rank: int) -> None:
    muon_gathers_shards_unless_blockwise(rank)
    tokens_shift_as_the_whole_sequence_does(rank)


def test_two_ranks(tmp_path: Path) -> None:
    run_ranks(check, world=2, folder=tmp_path)
