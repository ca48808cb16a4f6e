from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from oomscope.probe.job import BundledTarget, ProbeJob
from oomscope.probe.targets.recipes import world_of

CPU = torch.device("cpu")


def test_one_process_plays_any_rank_of_a_large_world() -> None:
    job = ProbeJob(target=BundledTarget(config={}), rank=3071, world_size=4096)
    with world_of(job, CPU):
        assert (dist.get_rank(), dist.get_world_size()) == (3071, 4096)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
    assert not dist.is_initialized()


def test_a_world_of_one_needs_no_group() -> None:
    with world_of(ProbeJob(target=BundledTarget(config={})), CPU):
        assert not dist.is_initialized()


def test_a_world_ends_also_after_an_error_and_after_the_target_left_it() -> None:
    job = ProbeJob(target=BundledTarget(config={}), world_size=2)
    with pytest.raises(ZeroDivisionError), world_of(job, CPU):
        raise ZeroDivisionError
    with world_of(job, CPU):
        dist.destroy_process_group()
    with world_of(job, CPU):
        assert dist.get_world_size() == 2
