"""What collectives write is told, on a group that answers without others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from oomscope.probe.recording.blocks import collectives_told
from oomscope.snapshot.trace import Category


class Notes:
    def __init__(self) -> None:
        self.told: list[int] = []

    def tell(self, category: Category, tensors: Iterable[torch.Tensor]) -> None:
        assert category is Category.COMMUNICATION
        self.told += [id(tensor) for tensor in tensors]


@pytest.fixture
def notes() -> Iterator[Notes]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    found = Notes()
    with collectives_told(found):
        yield found
    dist.destroy_process_group()


def test_receive_buffers_are_told_and_their_sources_are_not(notes: Notes) -> None:
    whole, shard = torch.zeros(4), torch.ones(2)
    parts = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather_into_tensor(whole, shard)
    dist.all_gather(parts, shard)
    dist.recv(shard, src=1)
    assert notes.told == [id(whole), *map(id, parts), id(shard)]


def test_what_is_changed_in_place_is_not_told(notes: Notes) -> None:
    dist.all_reduce(torch.ones(2))
    dist.broadcast(torch.ones(2), src=1)
    assert notes.told == []


def test_groups_are_left_as_they_were() -> None:
    before = vars(dist.ProcessGroup)["_allgather_base"]
    with collectives_told(Notes()):
        assert vars(dist.ProcessGroup)["_allgather_base"] is not before
    assert vars(dist.ProcessGroup)["_allgather_base"] is before
