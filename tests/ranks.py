"""Worlds of ranks on gloo, each rank a process of its own, forked from one that has imported what all of them need."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOADED = (
    "tests.card",
    "pytest",
    "hypothesis",
    "torch._dynamo",
    "torch._inductor.codecache",
    "torch.distributed.tensor",
    "oomscope.model.trainer",
    "tests.unit.virtual.torch_calls",
)
"""For all that is forked from one server, which the first to need it starts, and which no later list reaches.

An optimizer imports ``torch._dynamo`` when it is made, and a snapshot with stacks ``torch._inductor.codecache``.
"""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def run_ranks(work: Callable[..., None], *arguments: object, world: int, folder: Path) -> None:
    """Call ``work(rank, *arguments)`` on every rank of a default group that meets in ``folder``, and await them all.

    Raises:
        torch.multiprocessing.ProcessException: of the first rank that fails; the others are ended.
    """
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    store = f"file://{folder / 'store'}"
    mp.start_processes(
        _rank, args=(world, store, work, arguments), nprocs=world, daemon=True, start_method="forkserver"
    )


def _rank(rank: int, world: int, store: str, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    work(rank, *arguments)
    dist.destroy_process_group()
