"""The cards of ``cards.csv``: what CUDA reports of each, and how fast it is published to be.

An "80 GB" card has about 79 GiB: the name counts decimal gigabytes of memory chips, and error correction and the driver
keep a part. Newer drivers keep up to 0.2 GiB more than older ones, and drivers for Linux more than those for Windows; a
row has the total of a recent one for Linux where it is known, and names the output that it was read from.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from oomscope.errors import UsageError
from oomscope.printable import quoted
from oomscope.units import KiB, MiB, format_size, parse_size


class SmLimits(NamedTuple):
    """What one streaming multiprocessor (SM) of a compute capability holds."""

    shared_bytes: int
    """Bytes of shared memory."""
    shared_bytes_per_block: int
    """Most shared memory of one block, once it opts in."""
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
    """Name for ``--gpu``."""
    device_name: str
    """Name in the driver."""
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
    """Source of name, total, capability and multiprocessor count."""

    @property
    def sm_limits(self) -> SmLimits:
        """What one of its multiprocessors holds."""
        return _SM_LIMITS[self.capability]


def _card(row: dict[str, str]) -> Card:
    major, _, minor = row["capability"].partition(".")
    return Card(
        name=row["name"],
        device_name=row["device_name"],
        total_bytes=int(row["total_mib"]) * MiB,
        capability=(int(major), int(minor)),
        multiprocessors=int(row["multiprocessors"]),
        l2_bytes=int(row["l2_kib"]) * KiB,
        bus_bits=int(row["bus_bits"]),
        bf16_tflops=float(row["bf16_tflops"]) if row["bf16_tflops"] else None,
        memory_gbps=float(row["memory_gbps"]),
        nvlink_gbps=float(row["nvlink_gbps"]) if row["nvlink_gbps"] else None,
        pcie_gbps=float(row["pcie_gbps"]),
        source=row["source"],
    )


with Path(__file__).with_suffix(".csv").open(newline="") as _rows:
    CARDS: dict[str, Card] = {row["name"]: _card(row) for row in csv.DictReader(_rows)}
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
    "rtx-6000-ada": "rtx6000-ada",
    "nvidia-rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000",
    "nvidia-a100-sxm4-80gb": "a100-80gb",
    "nvidia-a100-pcie-40gb": "a100-40gb",
    "tesla-v100-pcie-32gb": "v100-32gb",
    **{card.device_name.lower().replace(" ", "-"): card.name for card in CARDS.values()},
}
"""Shorter names, and the driver's names of the cards."""

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


def named_card(limit: str | int | None, gpu: str | None, non_torch: str | int | None) -> tuple[int | None, int]:
    """Return the bytes of the card in all, None where none is named, and those outside PyTorch.

    Raises:
        UsageError: two cards are named, none of a name is known, one has 0 bytes, or memory outside PyTorch is given
            without a card or leaves nothing of it.
        InputError: a size is none.
    """
    if limit is not None and gpu is not None:
        raise UsageError(f"both --limit {limit} and --gpu {gpu}", remedy="name one card")
    if non_torch is not None and limit is None and gpu is None:
        raise UsageError("--non-torch without a card", remedy="give --limit SIZE or --gpu NAME as well")
    total = card_bytes(None if limit is None else parse_size(limit), gpu)
    if total == 0:
        raise UsageError("a card of 0 B", where="--limit", remedy="give its size, such as 80GiB")
    outside = parse_size(non_torch or 0)
    if total is not None and outside >= total:
        remedy = "give less, in bytes of the card that others than PyTorch hold"
        raise UsageError(f"--non-torch {non_torch} leaves nothing of {format_size(total)}", remedy=remedy)
    return total, outside


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
    raise UsageError(
        f"no card is called {quoted(name)}", remedy=f"{known.rstrip('?')}, or give its size with --limit SIZE"
    )


def card_is_supported(card: Card, arch_list: Iterable[str]) -> bool:
    """Whether a torch built for ``arch_list`` has kernels that run on ``card``.

    Code for ``sm_XY`` runs on the same major capability and an equal or higher minor one, with an ``a`` behind only
    on that very capability; ``compute_XY`` is compiled by the driver for any capability that is not lower (CUDA C++
    Programming Guide, "Application Compatibility").

    Args:
        card: the card.
        arch_list: as ``torch.cuda.get_arch_list()`` returns it: ``sm_80``, ``sm_90a``, ``compute_120``.
    """
    return any(_runs_on(card.capability, arch) for arch in arch_list)


def _runs_on(capability: tuple[int, int], arch: str) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
    if match is None:
        return False
    built = (int(match[2]), int(match[3]))
    if match[4] == "a":
        return built == capability
    return built <= capability and (match[1] == "compute" or built[0] == capability[0])
