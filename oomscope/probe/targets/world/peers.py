"""What a played rank cannot be told: calls whose answer another rank would send, refused by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_REMEDY: Final = "a small real world has one: oomscope probe -- torchrun --nproc-per-node N PROGRAM"
_SHAPES: Final = "; or give the shapes to each stage (input_args and output_args of PipelineStage)"
_PIPELINING: Final = "torch/distributed/pipelining"


class PeerNeededError(RuntimeError):
    """A call needs a rank that is not there: one process plays one rank.

    Args:
        what: the call, as the subject of the sentence.
        remedy: what else helps, behind a real world.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what} needs another rank, and one rank is played alone: {_REMEDY}{remedy}")


def refuse_what_needs_peers() -> None:
    """Let the calls of torch.distributed that wait for an object of another rank raise :class:`PeerNeededError`."""
    for name in ("broadcast_object_list", "scatter_object_list"):
        _replace(name, _refusing_other_sources)
    _replace("recv_object_list", _refusing)


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put ``function`` in the place of one of torch.distributed, where it is defined and where it is found."""
    setattr(c10d, name, function)
    if hasattr(dist, name):
        setattr(dist, name, function)


def _replace(name: str, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    replace(name, wrap(name, getattr(c10d, name)))


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def refused(*args: Any, **kwargs: Any) -> Any:
        if _PIPELINING in sys._getframe(1).f_code.co_filename:
            raise PeerNeededError(f"pipelining's inference of shapes ({name})", _SHAPES)
        raise PeerNeededError(name)

    return refused


def _refusing_other_sources(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for objects that this rank has; its source is the argument ``src`` or ``group_src``."""
    position = {"broadcast_object_list": 1, "scatter_object_list": 2}[name]

    @functools.wraps(function)
    def refused(*args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group") or (args[position + 1] if len(args) > position + 1 else None)
        source = args[position] if len(args) > position else kwargs.get("src")
        in_group = kwargs.get("group_src")
        own = dist.get_rank() if in_group is None else dist.get_rank(group)
        asked = in_group if in_group is not None else source or 0
        if asked != own:
            raise PeerNeededError(f"{name} from rank {asked}")
        return function(*args, **kwargs)

    return refused
