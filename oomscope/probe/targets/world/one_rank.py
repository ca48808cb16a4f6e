"""Makes this process a rank that is played alone: torch.distributed finds its world in it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import distributed_c10d as c10d

from oomscope.probe.targets.world.peers import refuse_what_needs_peers, replace
from oomscope.probe.targets.world.store import store_class


def play_one_rank(world_size: int) -> None:
    """Let torch.distributed begin a world of ``world_size`` in this process alone; torch has just been imported."""
    store = store_class(world_size)
    rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of this name
    for module in (dist, c10d, rendezvous):
        for name in ("TCPStore", "FileStore"):
            if hasattr(module, name):
                setattr(module, name, store)
    play_host_groups()
    refuse_what_needs_peers()
    _make_no_split_communicators()
    _gather_what_is_here()


def _make_no_split_communicators() -> None:
    """Leave the world unbound to a device: torch would split its communicator, and only peers tell who joins which."""
    begin = c10d.init_process_group

    @functools.wraps(begin)
    def unbound(*args: Any, **kwargs: Any) -> None:
        begin(*args, **kwargs)
        c10d._get_default_group().bound_device_id = None

    replace("init_process_group", unbound)


def _gather_what_is_here() -> None:
    """Fill each slot of a gather on this rank: torch receives them one by one, which says nothing of their likeness."""
    gather = c10d.gather

    @functools.wraps(gather)
    def repeated(tensor: Any, gather_list: Any = None, *args: Any, **kwargs: Any) -> Any:
        work = gather(tensor, gather_list, *args, **kwargs)
        for slot in gather_list or ():
            slot.copy_(tensor)
        return work

    replace("gather", repeated)


class PlayedHostGroup:
    """What ProcessGroupGloo becomes; making one gives torch's group without peers."""

    def __new__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        """Return a group of ``size`` ranks of which this process is ``rank``."""
        options = FakeProcessGroup.Options()
        if hasattr(options, "simulate_uniform_ranks"):  # since torch 2.15: sums are those of equal ranks
            options.simulate_uniform_ranks = True
        return FakeProcessGroup._create_internal(rank, size, options)


def play_host_groups() -> None:
    """Let torch.distributed make groups of host tensors without peers."""
    c10d.ProcessGroupGloo = PlayedHostGroup  # type: ignore[misc]
