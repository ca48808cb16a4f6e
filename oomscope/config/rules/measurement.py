"""Rules of the optimizer's sharding, of the device and of the rank that is measured."""

from __future__ import annotations

from oomscope.config.rules.rule import Rule
from oomscope.config.schema import Config
from oomscope.units import format_size

_OOMSCOPE = "oomscope docs/rules.md"


def counted(ranks: int) -> str:
    """Return ``1 rank``, ``8 ranks``."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _nothing_left(config: Config) -> bool:
    limit = config.device.limit
    return limit is not None and config.device.non_torch_bytes + config.device.other_process_bytes >= limit


MEASUREMENT_RULES: tuple[Rule, ...] = (
    Rule(
        id="D1",
        severity="warning",
        keys=("optimizer.use_distributed_optimizer", "parallel.data_parallel_size"),
        applies=lambda config: (
            config.optimizer.use_distributed_optimizer
            and config.parallel.data_parallel_size * config.parallel.context_parallel_size == 1
        ),
        summary="The distributed optimizer shards over data-parallel ranks.",
        message="use_distributed_optimizer shards nothing over one replica",
        remedy="set data_parallel_size above 1",
        source="Megatron-Core optimizer/distrib_optimizer.py",
    ),
    Rule(
        id="D2",
        keys=("probe.rank", "parallel.data_parallel_size"),
        applies=lambda config: isinstance(config.probe.rank, int) and config.probe.rank >= config.parallel.world_size,
        summary="The rank that is measured is one of the world.",
        message=lambda config: f"a world of {counted(config.parallel.world_size)} has no rank {config.probe.rank}",
        remedy=(
            "set probe.rank below the size of the world (TP * PP * CP * DP; a harness's --world-size), "
            "or to first, last or worst"
        ),
        source=_OOMSCOPE,
    ),
    Rule(
        id="D3",
        keys=("device.limit", "device.non_torch_bytes", "device.other_process_bytes"),
        applies=_nothing_left,
        summary="The card holds more than what the allocator does not see.",
        message=lambda config: (
            f"a card of {format_size(config.device.limit or 0)} has nothing left beside "
            f"{format_size(config.device.non_torch_bytes + config.device.other_process_bytes)} of others"
        ),
        remedy="raise device.limit, or lower device.non_torch_bytes and device.other_process_bytes",
        source=_OOMSCOPE,
    ),
    Rule(
        id="D4",
        keys=("probe.world_size",),
        applies=lambda config: config.probe.world_size not in {None, config.parallel.world_size},
        summary="The world of a configuration is the product of its parallel sizes.",
        message=lambda config: (
            f"the parallel sizes make a world of {counted(config.parallel.world_size)}, not {config.probe.world_size}"
        ),
        remedy="leave it out (it is for a harness), or set the parallel sizes",
        source=_OOMSCOPE,
    ),
)
