"""The section ``cost``: what an estimate of time assumes."""

from __future__ import annotations

from pydantic import Field

from oomscope.config.schema.section import Count, Section


class CostConfig(Section):
    """What the estimate of time assumes; nothing that is measured depends on it.

    Shares are of the card's published peaks. The defaults repeat what Korthikanti et al. 2022 (Table 4, A100) and
    Megatron-Bridge's measurements (H100) report; see docs/advise.md.
    """

    matmul_efficiency: float = Field(default=0.65, gt=0, le=1)
    """Share of the peak FLOP/s that matrix products reach."""
    memory_efficiency: float = Field(default=0.8, gt=0, le=1)
    """Share of the peak memory bandwidth that element-wise kernels reach."""
    link_efficiency: float = Field(default=0.7, gt=0, le=1)
    """Share of the peak NVLink and PCI Express bandwidth that copies and collectives reach."""
    gpus_per_node: Count = 8
    """Cards that NVLink joins; groups that reach further use the network."""
    network_gbps: float = Field(default=50.0, gt=0)
    """Network bandwidth of a card in one direction, 10^9 bytes a second (50: one 400 Gbit/s port a card)."""
    host_memory_gbps: float = Field(default=150.0, gt=0)
    """Bandwidth that the optimizers of a node's ranks reach together in host memory, 10^9 bytes a second."""
