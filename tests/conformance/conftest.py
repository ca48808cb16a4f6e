"""A world of eight ranks of which one is played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@pytest.fixture
def fake_world() -> Iterator[None]:
    """Rank 0 of eight whose collectives do nothing."""
    dist.init_process_group("cuda:fake,cpu:fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()
