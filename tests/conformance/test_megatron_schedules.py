"""Passes in flight, and where shards begin and end, in Megatron-Core (K10, K11). Expected values are derived
from Megatron's and Megatron-Bridge's own formulas and tests, or by brute force, never from this project's ledger.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from oomscope.model.base.observer import NullObserver
from oomscope.model.distributed.param_and_grad_buffer import GradBuffer, build_grad_buffers
from oomscope.model.parallel.interleaved_schedule import InterleavedSchedule
from oomscope.model.parallel.p2p_communication import Action
from oomscope.model.parallel.parallel_state import ParallelState, Place
from oomscope.model.parallel.schedules import one_forward_one_backward
from tests.conformance.megatron_stages import actions_of, config_of


class TestK10:
    """In flight: min(p - r, m) microbatches of 1F1B, min((p - r - 1)·2 + (v - 1)·G, m·v) + 1 chunks interleaved."""

    @staticmethod
    def most(actions: Iterable[Action]) -> int:
        """Return the most passes whose backward is still to come."""
        return max(itertools.accumulate(1 if action.direction == "forward" else -1 for action in actions))

    def test_one_forward_one_backward(self) -> None:
        for p, m in itertools.product(range(1, 7), range(1, 10)):
            for r in range(p):
                assert self.most(one_forward_one_backward(p, r, m)) == min(p - r, m)

    def test_interleaved(self) -> None:
        cases = [
            (p, m, v, group)
            for p, v in itertools.product(range(2, 5), range(2, 4))
            for group in (p, p + 1)
            for m in (group, 2 * group, 3 * group)
        ]
        for p, m, v, group in cases:
            for r in range(p):
                warmup = min((p - r - 1) * 2 + (v - 1) * group, m * v)
                schedule = InterleavedSchedule(p, r, m, v, group)
                assert self.most(actions_of(schedule)) == min(warmup + 1, m * v), (p, m, v, group, r)


class TestK11:
    """Shards to the byte: parameters start at multiples of 64 elements, buckets end at those of lcm(d, 128)."""

    SIZES = [17_000_001, 64, 100, 23_000_000, 5_000_063, 1, 39_999_999, 40_000_000, 12_345]  # noqa: RUF012

    @staticmethod
    def by_counting(sizes: list[int], dp: int, *, bucketed: bool) -> tuple[list[tuple[int, int]], list[int]]:
        """Return where parameters lie and where buckets end, elements laid one after the other.

        Megatron-Core ``distributed/param_and_grad_buffer.py`` and ``distributed_data_parallel.py``: a bucket is closed
        by the parameter that brings it to max(40e6, 1e6·d) elements.
        """
        most = max(40_000_000, 1_000_000 * dp) if bucketed else math.inf
        at, began, places, ends = 0, 0, [], []
        for number, size in enumerate(reversed(sizes)):
            while at % 64:
                at += 1
            places.append((at, at + size))
            at += size
            if at - began >= most or number == len(sizes) - 1:
                while at % dp or at % 128:
                    at += 1
                began = at
                ends.append(at)
        return places, ends

    def buffer(self, dp: int, rank: int, *, overlap: bool) -> GradBuffer:
        module = nn.ParameterList(
            nn.Parameter(torch.empty(size, device="meta", dtype=torch.bfloat16)) for size in self.SIZES
        )
        config = config_of(
            optimizer={"use_distributed_optimizer": True, "overlap_grad_reduce": overlap},
            parallel={"data_parallel_size": dp},
        )
        state = ParallelState(
            world_size=dp, rank=rank, **dict.fromkeys(("dp", "dp_cp", "intra_dp_cp"), Place(rank, dp))
        )
        (buffer,) = build_grad_buffers([module], config, state, NullObserver())
        return buffer

    @pytest.mark.parametrize("overlap", [False, True])
    @pytest.mark.parametrize("dp", [1, 2, 3, 7, 8, 48])
    def test_layout_and_bytes(self, dp: int, overlap: bool) -> None:
        places, ends = self.by_counting(self.SIZES, dp, bucketed=overlap)
        buffer = self.buffer(dp, 0, overlap=overlap)
        assert [tuple(span) for span in buffer.layout.params] == places
        assert [span.end for span in buffer.layout.buckets] == ends
        assert buffer.grads.nbytes == 4 * ends[-1]
        assert buffer.values is not None
        assert buffer.values.nbytes == 2 * ends[-1]

    @pytest.mark.parametrize("overlap", [False, True])
    @pytest.mark.parametrize("dp", [2, 3, 8])
    def test_a_rank_owns_its_part_of_every_bucket(self, dp: int, overlap: bool) -> None:
        """Rank r holds elements [r, r + 1)/d of each bucket; what it steps is that, without the padding."""
        places, ends = self.by_counting(self.SIZES, dp, bucketed=overlap)
        for rank in range(dp):
            buffer = self.buffer(dp, rank, overlap=overlap)
            expected = []
            for start, end in places:
                bucket = next(index for index, last in enumerate(ends) if end <= last)
                first = ends[bucket - 1] if bucket else 0
                share = (ends[bucket] - first) // dp
                mine = first + rank * share, first + (rank + 1) * share
                low, high = max(start, mine[0]) - start, min(end, mine[1]) - start
                expected.append(max(high - low, 0))
            assert [buffer.owned(index).numel for index in range(len(places))] == expected
