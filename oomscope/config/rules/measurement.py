"""Rules of the batch, of the device and of the rank that is measured."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule, error
from oomscope.config.schema import Config
from oomscope.units import format_size

_OOMSCOPE = "oomscope docs/rules.md"
_MICROBATCHES = "Megatron-Core num_microbatches_calculator.py"


def _batches_contradict(config: Config) -> bool:
    data = config.data
    if data.num_microbatches is None or data.global_batch_size is None:
        return False
    return data.global_batch_size != data.num_microbatches * data.micro_batch_size * config.parallel.data_parallel_size


def _world(config: Config, fits: bool) -> str | None:
    """Return the size of the world in words, unless what is asked of it ``fits``."""
    ranks = config.parallel.world_size
    return None if fits else "1 rank" if ranks == 1 else f"{ranks} ranks"


def _full_card(config: Config) -> str | None:
    """Return the sizes of the card and of what is not the allocator's, where that leaves nothing."""
    taken, limit = config.device.non_torch_bytes + config.device.other_process_bytes, config.device.limit
    if limit is None or taken < limit:
        return None
    return f"{format_size(limit)} has nothing left after {format_size(taken)}"


MEASUREMENT_RULES: tuple[Rule, ...] = (
    error(
        id="B1",
        keys="data.global_batch_size data.micro_batch_size parallel.data_parallel_size",
        applies=lambda c: c.rest_of_batch,
        message="a global batch of {c.data.global_batch_size} cannot be split evenly into microbatches of "
        "{c.data.micro_batch_size} on {c.parallel.data_parallel_size} replicas",
        remedy="let micro_batch_size * data_parallel_size divide global_batch_size",
        source=_MICROBATCHES,
    ),
    error(
        id="B2",
        keys="data.global_batch_size data.num_microbatches",
        applies=_batches_contradict,
        message="a global batch of {c.data.global_batch_size} is not {c.data.num_microbatches} microbatches of "
        "{c.data.micro_batch_size} on {c.parallel.data_parallel_size} replicas",
        remedy="give one of them, and null for the other",
        source=_MICROBATCHES,
    ),
    error(
        id="D2",
        keys="probe.rank parallel.data_parallel_size",
        applies=lambda c: _world(c, not isinstance(c.probe.rank, int) or c.probe.rank < c.parallel.world_size),
        message="a world of {found} has no rank {c.probe.rank}",
        remedy="set probe.rank below the size of the world (TP * PP * CP * DP; a harness's --world-size), "
        "or to first, last or worst",
        source=_OOMSCOPE,
    ),
    error(
        id="D3",
        keys="device.limit device.non_torch_bytes device.other_process_bytes",
        applies=_full_card,
        message="a card of {found} that are not the allocator's",
        remedy="raise device.limit, or lower device.non_torch_bytes and device.other_process_bytes",
        source=_OOMSCOPE,
    ),
    error(
        id="D4",
        keys="probe.world_size",
        applies=lambda c: _world(c, c.probe.world_size in {None, c.parallel.world_size}),
        message="the parallel sizes make a world of {found}, not {c.probe.world_size}",
        remedy="leave it out (it is for a harness), or set the parallel sizes",
        source=_OOMSCOPE,
    ),
)
