"""What a recording knows that the allocator's history does not: the rank, the cards and why it is written now."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import Any

import torch

from oomscope.capture import history, names
from oomscope.capture.history import Refusal
from oomscope.capture.settings import Ring
from oomscope.snapshot.provenance import Card, Provenance, Reason, Refused


def origin(
    document: dict[str, Any],
    *,
    reason: Reason,
    rank: int | None,
    step: int,
    refusal: Refusal | None,
    ring: Ring | None,
) -> Provenance:
    """Return the provenance of ``document``, taken just now.

    Args:
        document: a snapshot in torch's schema.
        reason: why it was taken.
        rank: of this process, where it is known.
        step: how many training steps are complete.
        refusal: the request that failed, where that is the reason.
        ring: what the allocator keeps, where it is known.
    """
    world_size = names.world_size_of_process(os.environ)
    return Provenance(
        reason=reason,
        rank=-1 if rank is None else rank,
        world_size=-1 if world_size is None else world_size,
        iteration=step,
        host=socket.gethostname(),
        pid=os.getpid(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        torch_version=str(torch.__version__),
        max_entries=-1 if ring is None else ring.max_entries,
        stacks="" if ring is None else ring.stacks,
        cards=tuple(_card(index) for index in sorted({segment["device"] for segment in document["segments"]})),
        refused=None if refusal is None else Refused(**refusal._asdict()),
    )


def _card(index: int) -> Card:
    """Weigh a device on which the process holds memory; asking for another would make a context there."""
    free, total = torch.cuda.mem_get_info(index)
    return Card(
        index=index,
        name=torch.cuda.get_device_name(index),
        total_bytes=int(total),
        free_bytes=int(free),
        memory_fraction=history.memory_fraction(index),
    )
