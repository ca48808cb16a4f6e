"""Groups of host tensors in a world of one process: gloo would wait for processes that are not there.

In its place stands a group of torch that answers as if every rank held what this one holds.
"""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed import distributed_c10d as c10d


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
