"""The table of cards: what CUDA reports of each, which is less than the name says, and how fast it is published to be.

An "80 GB" card has about 79 GiB: the name counts decimal gigabytes of memory chips, and error correction and the driver
keep a part. Totals differ by some MiB between driver versions; each row names the output that it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from oomscope.errors import UsageError
from oomscope.units import KiB, MiB


class SmLimits(NamedTuple):
    """What one streaming multiprocessor (SM) of a compute capability holds."""

    shared_bytes: int
    """Shared memory."""
    shared_bytes_per_block: int
    """The most of it that one block may have, once it opts in."""
    threads: int
    blocks: int


_SM_LIMITS = {
    (7, 0): SmLimits(96 * KiB, 96 * KiB, 2048, 32),
    (7, 5): SmLimits(64 * KiB, 64 * KiB, 1024, 16),
    (8, 0): SmLimits(164 * KiB, 163 * KiB, 2048, 32),
    (8, 6): SmLimits(100 * KiB, 99 * KiB, 1536, 16),
    (8, 9): SmLimits(100 * KiB, 99 * KiB, 1536, 24),
    (9, 0): SmLimits(228 * KiB, 227 * KiB, 2048, 32),
    (10, 0): SmLimits(228 * KiB, 227 * KiB, 2048, 32),
    (12, 0): SmLimits(100 * KiB, 99 * KiB, 1536, 24),
}
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """One kind of card."""

    name: str
    """What ``--gpu`` calls it."""
    device_name: str
    """What the driver calls it."""
    total_bytes: int
    """``total_memory`` of torch's device properties: what cudaMemGetInfo calls total."""
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    multiprocessors: int
    l2_bytes: int
    """Level-2 cache."""
    bus_bits: int
    """Width of the memory bus."""
    bf16_tflops: float | None
    """Peak dense bf16 tensor throughput (NVIDIA data sheet of the card); None where it has none or it is not given."""
    memory_gbps: float
    """Peak bandwidth of the card's memory, 10^9 bytes a second (NVIDIA data sheet of the card)."""
    nvlink_gbps: float | None
    """NVLink bandwidth in one direction, over all links (same source, which gives both directions together); None
    where there is none."""
    pcie_gbps: float
    """PCI Express bandwidth in one direction: 16 lanes of the generation that the data sheet names."""
    source: str
    """Where name, total, capability and multiprocessor count were read."""
    cache_source: str
    """Where level-2 cache and bus width were read."""

    @property
    def sm_limits(self) -> SmLimits:
        """What one of its multiprocessors holds."""
        return _SM_LIMITS[self.capability]


def _properties(device_name: str, mebibytes: int) -> str:
    return f"printed torch.cuda.get_device_properties: {device_name!r}, {mebibytes}MB"


_QUERY = "NVIDIA's deviceQuery on such a card"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper, appendix A"

_CARDS = (
    Card(
        name="b200",
        device_name="NVIDIA B200",
        total_bytes=182642 * MiB,
        capability=(10, 0),
        multiprocessors=148,
        l2_bytes=129536 * KiB,
        bus_bits=7680,
        bf16_tflops=2250.0,
        memory_gbps=8000,
        nvlink_gbps=900,
        pcie_gbps=64,
        source=_properties("NVIDIA B200", 182642),
        cache_source="device properties in github.com/pytorch/ao/pull/4002: 126.50 MB, 7680 bits",
    ),
    Card(
        name="h200",
        device_name="NVIDIA H200",
        total_bytes=143156 * MiB,
        capability=(9, 0),
        multiprocessors=132,
        l2_bytes=60 * MiB,
        bus_bits=6144,
        bf16_tflops=989.4,
        memory_gbps=4800,
        nvlink_gbps=450,
        pcie_gbps=64,
        source=_properties("NVIDIA H200", 143156),
        cache_source="torch's device properties, L2_cache_size=60MB; six stacks of HBM3e of 1024 bits (data sheet)",
    ),
    Card(
        name="h100-80gb",
        device_name="NVIDIA H100 80GB HBM3",
        total_bytes=81089 * MiB,
        capability=(9, 0),
        multiprocessors=132,
        l2_bytes=50 * MiB,
        bus_bits=5120,
        bf16_tflops=989.4,
        memory_gbps=3350,
        nvlink_gbps=450,
        pcie_gbps=64,
        source=_properties("NVIDIA H100 80GB HBM3", 81089) + " (driver 570)",
        cache_source=_QUERY,
    ),
    Card(
        name="h100-pcie",
        device_name="NVIDIA H100 PCIe",
        total_bytes=81008 * MiB,
        capability=(9, 0),
        multiprocessors=114,
        l2_bytes=50 * MiB,
        bus_bits=5120,
        bf16_tflops=756.0,
        memory_gbps=2000,
        nvlink_gbps=300,
        pcie_gbps=64,
        source=_properties("NVIDIA H100 PCIe", 81008),
        cache_source="nvaccelinfo on such a card",
    ),
    Card(
        name="h20",
        device_name="NVIDIA H20",
        total_bytes=97285 * MiB,
        capability=(9, 0),
        multiprocessors=78,
        l2_bytes=60 * MiB,
        bus_bits=6144,
        bf16_tflops=148.0,
        memory_gbps=4000,
        nvlink_gbps=450,
        pcie_gbps=64,
        source=_properties("NVIDIA H20", 97285),
        cache_source="taken from the H200, which is the same chip with as many stacks of memory",
    ),
    Card(
        name="a100-80gb",
        device_name="NVIDIA A100 80GB PCIe",
        total_bytes=81049 * MiB,
        capability=(8, 0),
        multiprocessors=108,
        l2_bytes=40 * MiB,
        bus_bits=5120,
        bf16_tflops=312.0,
        memory_gbps=2039,
        nvlink_gbps=300,
        pcie_gbps=32,
        source="github.com/ekondis/mixbench/issues/47: 'NVIDIA A100 80GB PCIe', 81049 MB",
        cache_source="the same; memory bandwidth is that of the SXM card, whose other properties are alike",
    ),
    Card(
        name="a100-40gb",
        device_name="NVIDIA A100-SXM4-40GB",
        total_bytes=40339 * MiB,
        capability=(8, 0),
        multiprocessors=108,
        l2_bytes=40 * MiB,
        bus_bits=5120,
        bf16_tflops=312.0,
        memory_gbps=1555,
        nvlink_gbps=300,
        pcie_gbps=32,
        source="deviceQuery in github.com/bottlerocket-os/bottlerocket/pull/3873: 'NVIDIA A100-SXM4-40GB', 40339 MB",
        cache_source="the same",
    ),
    Card(
        name="a40",
        device_name="NVIDIA A40",
        total_bytes=45416 * MiB,
        capability=(8, 6),
        multiprocessors=84,
        l2_bytes=6 * MiB,
        bus_bits=384,
        bf16_tflops=149.7,
        memory_gbps=696,
        nvlink_gbps=56.25,
        pcie_gbps=32,
        source=_properties("NVIDIA A40", 45416),
        cache_source=_GA102,
    ),
    Card(
        name="a6000",
        device_name="NVIDIA RTX A6000",
        total_bytes=48676 * MiB,
        capability=(8, 6),
        multiprocessors=84,
        l2_bytes=6 * MiB,
        bus_bits=384,
        bf16_tflops=154.8,
        memory_gbps=768,
        nvlink_gbps=56.25,
        pcie_gbps=32,
        source=_properties("NVIDIA RTX A6000", 48676),
        cache_source=_GA102,
    ),
    Card(
        name="a10",
        device_name="NVIDIA A10",
        total_bytes=22516 * MiB,
        capability=(8, 6),
        multiprocessors=72,
        l2_bytes=6 * MiB,
        bus_bits=384,
        bf16_tflops=125.0,
        memory_gbps=600,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=f"{_QUERY}: 'NVIDIA A10', 22516 MB (CUDA driver 12.2)",
        cache_source="the same",
    ),
    Card(
        name="a10g",
        device_name="NVIDIA A10G",
        total_bytes=22587 * MiB,
        capability=(8, 6),
        multiprocessors=80,
        l2_bytes=6 * MiB,
        bus_bits=384,
        bf16_tflops=70.0,
        memory_gbps=600,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=_properties("NVIDIA A10G", 22587),
        cache_source=_GA102,
    ),
    Card(
        name="l40s",
        device_name="NVIDIA L40S",
        total_bytes=45589 * MiB,
        capability=(8, 9),
        multiprocessors=142,
        l2_bytes=96 * MiB,
        bus_bits=384,
        bf16_tflops=362.1,
        memory_gbps=864,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=_properties("NVIDIA L40S", 45589),
        cache_source="README of the crate cuda-device-query",
    ),
    Card(
        name="l4",
        device_name="NVIDIA L4",
        total_bytes=22518 * MiB,
        capability=(8, 9),
        multiprocessors=58,
        l2_bytes=48 * MiB,
        bus_bits=192,
        bf16_tflops=121.0,
        memory_gbps=300,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=f"{_QUERY}: 'NVIDIA L4', 22518 MB (CUDA driver 12.0)",
        cache_source="the same",
    ),
    Card(
        name="rtx5090",
        device_name="NVIDIA GeForce RTX 5090",
        total_bytes=32120 * MiB,
        capability=(12, 0),
        multiprocessors=170,
        l2_bytes=96 * MiB,
        bus_bits=512,
        bf16_tflops=209.5,
        memory_gbps=1792,
        nvlink_gbps=None,
        pcie_gbps=64,
        source="deviceQuery in github.com/NVIDIA/nccl/issues/1637: 'NVIDIA GeForce RTX 5090', 32120 MB",
        cache_source=_QUERY,
    ),
    Card(
        name="rtx4090",
        device_name="NVIDIA GeForce RTX 4090",
        total_bytes=24563 * MiB,
        capability=(8, 9),
        multiprocessors=128,
        l2_bytes=72 * MiB,
        bus_bits=384,
        bf16_tflops=165.2,
        memory_gbps=1008,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=_properties("NVIDIA GeForce RTX 4090", 24563),
        cache_source=_QUERY,
    ),
    Card(
        name="rtx3090",
        device_name="NVIDIA GeForce RTX 3090",
        total_bytes=24575 * MiB,
        capability=(8, 6),
        multiprocessors=82,
        l2_bytes=6 * MiB,
        bus_bits=384,
        bf16_tflops=71.0,
        memory_gbps=936,
        nvlink_gbps=None,
        pcie_gbps=32,
        source=_properties("NVIDIA GeForce RTX 3090", 24575),
        cache_source=_GA102,
    ),
    Card(
        name="v100-32gb",
        device_name="Tesla V100-PCIE-32GB",
        total_bytes=32510 * MiB,
        capability=(7, 0),
        multiprocessors=80,
        l2_bytes=6 * MiB,
        bus_bits=4096,
        bf16_tflops=None,
        memory_gbps=900,
        nvlink_gbps=None,
        pcie_gbps=16,
        source=_properties("Tesla V100-PCIE-32GB", 32510),
        cache_source="NVIDIA Tesla V100 GPU Architecture whitepaper, table 1",
    ),
    Card(
        name="v100-16gb",
        device_name="Tesla V100-SXM2-16GB",
        total_bytes=16160 * MiB,
        capability=(7, 0),
        multiprocessors=80,
        l2_bytes=6 * MiB,
        bus_bits=4096,
        bf16_tflops=None,
        memory_gbps=900,
        nvlink_gbps=None,
        pcie_gbps=16,
        source=_properties("Tesla V100-SXM2-16GB", 16160),
        cache_source="NVIDIA Tesla V100 GPU Architecture whitepaper, table 1",
    ),
    Card(
        name="t4",
        device_name="Tesla T4",
        total_bytes=15109 * MiB,
        capability=(7, 5),
        multiprocessors=40,
        l2_bytes=4 * MiB,
        bus_bits=256,
        bf16_tflops=None,
        memory_gbps=320,
        nvlink_gbps=None,
        pcie_gbps=16,
        source=_properties("Tesla T4", 15109),
        cache_source=_QUERY,
    ),
)

CARDS: dict[str, Card] = {card.name: card for card in _CARDS}
"""Cards by the name that ``--gpu`` takes."""

_ALIASES = {
    "h100": "h100-80gb",
    "h100-sxm": "h100-80gb",
    "a100": "a100-80gb",
    "v100": "v100-32gb",
    "4090": "rtx4090",
    "5090": "rtx5090",
    "3090": "rtx3090",
    "rtx-4090": "rtx4090",
    "rtx-5090": "rtx5090",
    "rtx-3090": "rtx3090",
    "rtx-a6000": "a6000",
    "nvidia-a100-sxm4-80gb": "a100-80gb",
    "nvidia-a100-pcie-40gb": "a100-40gb",
    "tesla-v100-sxm2-32gb": "v100-32gb",
    **{card.device_name.lower().replace(" ", "-"): card.name for card in _CARDS},
}
"""Shorter names, and those that the driver calls the cards by."""

DEFAULT_CARD = "h100-80gb"
"""The card that is played unless told otherwise."""


def card_bytes(limit_bytes: int | None, name: str | None) -> int | None:
    """Return the bytes in all of the card that a limit or a name stands for; None for neither.

    Raises:
        UsageError: no card is called ``name``.
    """
    if limit_bytes is not None:
        return limit_bytes
    return find_card(name).total_bytes if name else None


def find_card(name: str) -> Card:
    """Return the card called ``name``, in any case, with ``_`` or blanks for ``-``.

    Raises:
        UsageError: there is no such card; names the nearest ones.
    """
    key = "-".join(name.lower().replace("_", " ").split())
    card = CARDS.get(_ALIASES.get(key, key))
    if card is not None:
        return card
    near = get_close_matches(key, [*CARDS, *_ALIASES], n=3, cutoff=0.65)
    meant = list(dict.fromkeys(_ALIASES.get(match, match) for match in near))
    known = f"did you mean {' or '.join(meant)}?" if meant else f"known cards: {', '.join(CARDS)}"
    raise UsageError(f"no card is called {name!r}", remedy=f"{known.rstrip('?')}, or give its size with --limit SIZE")
