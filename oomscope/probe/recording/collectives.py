"""Tells which blocks are written by collectives: what a rank receives, for as long as it only passes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from oomscope.probe.recording.blocks import ToldBlocks
from oomscope.snapshot.trace import Category

_RECEIVING: Final = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
"""Methods of process groups whose first argument is written; what a collective changes in place keeps its purpose."""


@contextmanager
def collectives_told(blocks: ToldBlocks) -> Iterator[None]:
    """Tell ``blocks`` of what collectives write while the block runs."""
    group: Any = getattr(dist, "ProcessGroup", None)
    # As they stand in the class: what getattr returns of a compiled method would not bind to a group any more.
    methods = {name: vars(group)[name] for name in _RECEIVING if group is not None and name in vars(group)}
    for name in methods:
        setattr(group, name, _telling(getattr(group, name), blocks))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(group, name, method)


def _telling(method: Callable[..., Any], blocks: ToldBlocks) -> Callable[..., Any]:
    def told(group: Any, *args: Any, **kwargs: Any) -> Any:
        blocks.tell(Category.COMMUNICATION, _tensors(args[0] if args else ()))
        return method(group, *args, **kwargs)

    return told


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a list of lists, as collectives take them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
