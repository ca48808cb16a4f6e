"""Which groups of saved activations fine-grained offloading leaves on the device, once it knows an iteration.

Megatron-Core ``pipeline_parallel/fine_grained_activation_offload.py``: one manager for all model chunks and
microbatches of a rank sends everything away in its first iteration. From the second on it spares what would come back
at once, and then the share that is not to be offloaded (``post_warmup_callback``, ``should_bulk_offload``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oomscope.model.parallel.turns import PassOrder


class SavedGroup(NamedTuple):
    """What one run of a module saved."""

    name: str
    """Of the module."""
    nbytes: int
    """In tensors that are large enough to be offloaded."""


def resident_groups(passes: Sequence[Sequence[SavedGroup]], order: PassOrder, fraction: float) -> list[set[int]]:
    """Return of each pass, in the order of forwards, which of its groups stay, by number.

    Three kinds do: of each module's name the last group of the first pass to be differentiated that has any, as many
    names at most as one pass has; of the groups with bytes that are then left in a pass the last
    ``int(n * (1 - fraction))``; and the last group of each name in a pass that is differentiated next when it has run,
    as on the last stage.

    Args:
        passes: the groups of each.
        order: when they are differentiated.
        fraction: of the groups that may go, how many do.
    """
    resident: list[set[int]] = [set() for _ in passes]
    for forward, group in _first_needed(passes, order):
        resident[forward].add(group)
    for groups, staying in zip(passes, resident, strict=True):
        movable = [number for number, group in enumerate(groups) if group.nbytes and number not in staying]
        staying.update(movable[len(movable) - int(len(movable) * (1 - fraction)) :])
    for forward in range(len(passes)):
        resident[forward] |= _read_next(forward, passes, order)
    return resident


def _first_needed(passes: Sequence[Sequence[SavedGroup]], order: PassOrder) -> list[tuple[int, int]]:
    """Return pass and number of the last group of each name in the earliest backward that has any of that name."""
    last: dict[str, tuple[int, int]] = {}
    for forward in reversed(order.backward):
        last.update({group.name: (forward, number) for number, group in enumerate(passes[forward])})
    most = max((len({group.name for group in groups}) for groups in passes), default=0)
    return list(last.values())[:most]


def _read_next(forward: int, passes: Sequence[Sequence[SavedGroup]], order: PassOrder) -> set[int]:
    """Return the last groups of those names of which no pass is differentiated before this one, once it has run."""
    before: set[str] = set()
    for waiting in order.backward[order.differentiated_before(forward) :]:
        if waiting == forward:
            break
        before |= {group.name for group in passes[waiting]}
    last = {group.name: number for number, group in enumerate(passes[forward])}
    return {number for name, number in last.items() if name not in before}
