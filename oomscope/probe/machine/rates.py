"""How fast a card is assumed to be: its published peaks, times the shares that the configuration assumes."""

from __future__ import annotations

from oomscope.config.schema import Config
from oomscope.errors import UsageError
from oomscope.model.cost.step_time import Rates, StepCost, step_cost
from oomscope.virtual.cards import DEFAULT_CARD, Card, find_card

_GIGA = 1e9
_TERA = 1e12


def rates_of(gpu: Card, config: Config) -> Rates | None:
    """Return what ``config`` assumes of ``gpu``; None in fp32 and for a card whose bf16 throughput is not published."""
    if gpu.bf16_tflops is None or not (config.precision.bf16 or config.precision.fp16):
        return None
    cost = config.cost
    return Rates(
        matmul=gpu.bf16_tflops * _TERA * cost.matmul_efficiency,
        memory=gpu.memory_gbps * _GIGA * cost.memory_efficiency,
        nvlink=(gpu.nvlink_gbps or gpu.pcie_gbps) * _GIGA * cost.link_efficiency,
        network=cost.network_gbps * _GIGA * cost.link_efficiency,
        pcie=gpu.pcie_gbps * _GIGA * cost.link_efficiency,
        host_memory=cost.host_memory_gbps * _GIGA,
        gpus_per_node=cost.gpus_per_node,
    )


def estimated_cost(config: Config, *, rank: int) -> StepCost | None:
    """Return the estimate of a step of ``rank`` on the configured card; None where its speed is not known."""
    try:
        rates = rates_of(find_card(config.device.gpu or DEFAULT_CARD), config)
    except UsageError:
        return None
    return None if rates is None else step_cost(config, rank=rank, rates=rates)
