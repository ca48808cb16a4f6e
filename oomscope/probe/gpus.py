"""Real cards by name: what ``torch.cuda.get_device_properties`` reports, which is less than the name says.

An "80 GB" card has about 79 GiB: the name counts decimal gigabytes of memory chips, and error correction and the
driver keep a part. Totals differ by some MiB between driver versions; each row names the log it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from oomscope.errors import UsageError
from oomscope.units import MiB


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One kind of card."""

    name: str
    total_bytes: int
    """``total_memory`` of the device properties: what cudaMemGetInfo calls total."""
    capability: tuple[int, int]
    """Compute capability, major and minor."""
    multiprocessors: int
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
    """Where total, capability and multiprocessor count were read."""


_PROPERTIES = "printed torch.cuda.get_device_properties"

_ROWS: tuple[tuple[str, int, tuple[int, int], int, float | None, str], ...] = (
    ("b200", 182642, (10, 0), 148, 2250.0, f"{_PROPERTIES}: 'NVIDIA B200', 182642MB"),
    ("h200", 143156, (9, 0), 132, 989.4, f"{_PROPERTIES}: 'NVIDIA H200', 143156MB"),
    ("h100-80gb", 81089, (9, 0), 132, 989.4, f"{_PROPERTIES}: 'NVIDIA H100 80GB HBM3', 81089MB (driver 570)"),
    ("h100-pcie", 81008, (9, 0), 114, 756.0, f"{_PROPERTIES}: 'NVIDIA H100 PCIe', 81008MB"),
    ("h20", 97285, (9, 0), 78, 148.0, f"{_PROPERTIES}: 'NVIDIA H20', 97285MB"),
    ("a100-80gb", 81049, (8, 0), 108, 312.0, "github.com/ekondis/mixbench#47: 'NVIDIA A100 80GB PCIe', 81049 MB"),
    (
        "a100-40gb",
        40339,
        (8, 0),
        108,
        312.0,
        "deviceQuery in github.com/bottlerocket-os/bottlerocket#3873: 'NVIDIA A100-SXM4-40GB', 42298834944 bytes",
    ),
    ("a40", 45416, (8, 6), 84, 149.7, f"{_PROPERTIES}: 'NVIDIA A40', 45416MB"),
    ("a6000", 48676, (8, 6), 84, 154.8, f"{_PROPERTIES}: 'NVIDIA RTX A6000', 48676MB"),
    ("a10g", 22587, (8, 6), 80, 70.0, f"{_PROPERTIES}: 'NVIDIA A10G', 22587MB"),
    ("l40s", 45589, (8, 9), 142, 362.1, f"{_PROPERTIES}: 'NVIDIA L40S', 45589MB"),
    ("rtx5090", 32120, (12, 0), 170, 209.5, "deviceQuery in github.com/NVIDIA/nccl#1637: 33680457728 bytes"),
    ("rtx4090", 24563, (8, 9), 128, 165.2, f"{_PROPERTIES}: 'NVIDIA GeForce RTX 4090', 24563MB"),
    ("rtx3090", 24575, (8, 6), 82, 71.0, f"{_PROPERTIES}: 'NVIDIA GeForce RTX 3090', 24575MB"),
    ("v100-32gb", 32510, (7, 0), 80, None, f"{_PROPERTIES}: 'Tesla V100-PCIE-32GB', 32510MB"),
    ("v100-16gb", 16160, (7, 0), 80, None, f"{_PROPERTIES}: 'Tesla V100-SXM2-16GB', 16160MB"),
    ("t4", 15109, (7, 5), 40, None, f"{_PROPERTIES}: 'Tesla T4', 15109MB"),
)

_SPEEDS: dict[str, tuple[float, float | None, float]] = {
    "b200": (8000, 900, 64),
    "h200": (4800, 450, 64),
    "h100-80gb": (3350, 450, 64),
    "h100-pcie": (2000, 300, 64),
    "h20": (4000, 450, 64),
    "a100-80gb": (2039, 300, 32),
    "a100-40gb": (1555, 300, 32),
    "a40": (696, 56.25, 32),
    "a6000": (768, 56.25, 32),
    "a10g": (600, None, 32),
    "l40s": (864, None, 32),
    "rtx5090": (1792, None, 64),
    "rtx4090": (1008, None, 32),
    "rtx3090": (936, None, 32),
    "v100-32gb": (900, None, 16),
    "v100-16gb": (900, None, 16),
    "t4": (320, None, 16),
}
"""Memory, NVLink and PCI Express bandwidth by name. a100-80gb stands for the SXM card, whose properties are alike."""

GPUS: dict[str, Gpu] = {
    name: Gpu(
        name=name,
        total_bytes=mebibytes * MiB,
        capability=capability,
        multiprocessors=multiprocessors,
        bf16_tflops=bf16_tflops,
        memory_gbps=_SPEEDS[name][0],
        nvlink_gbps=_SPEEDS[name][1],
        pcie_gbps=_SPEEDS[name][2],
        source=source,
    )
    for name, mebibytes, capability, multiprocessors, bf16_tflops, source in _ROWS
}
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
    "nvidia-b200": "b200",
    "nvidia-h200": "h200",
    "nvidia-h100-80gb-hbm3": "h100-80gb",
    "nvidia-h100-pcie": "h100-pcie",
    "nvidia-h20": "h20",
    "nvidia-a100-sxm4-80gb": "a100-80gb",
    "nvidia-a100-80gb-pcie": "a100-80gb",
    "nvidia-a100-sxm4-40gb": "a100-40gb",
    "nvidia-a100-pcie-40gb": "a100-40gb",
    "nvidia-a40": "a40",
    "nvidia-rtx-a6000": "a6000",
    "nvidia-a10g": "a10g",
    "nvidia-l40s": "l40s",
    "nvidia-geforce-rtx-5090": "rtx5090",
    "nvidia-geforce-rtx-4090": "rtx4090",
    "nvidia-geforce-rtx-3090": "rtx3090",
    "tesla-v100-pcie-32gb": "v100-32gb",
    "tesla-v100-sxm2-32gb": "v100-32gb",
    "tesla-v100-sxm2-16gb": "v100-16gb",
    "tesla-t4": "t4",
}
"""Shorter names, and those that the driver calls the cards by."""

DEFAULT_GPU = "h100-80gb"
"""The card that the simulated device plays unless told otherwise."""


def card_bytes(limit_bytes: int | None, gpu: str | None) -> int | None:
    """Return the bytes in all of the card that a limit or a name stands for; None for neither.

    Raises:
        UsageError: no card is called ``gpu``.
    """
    if limit_bytes is not None:
        return limit_bytes
    return find_gpu(gpu).total_bytes if gpu else None


def find_gpu(name: str) -> Gpu:
    """Return the card called ``name``, in any case, with ``_`` or blanks for ``-``.

    Raises:
        UsageError: there is no such card; names the nearest ones.
    """
    key = "-".join(name.lower().replace("_", " ").split())
    gpu = GPUS.get(_ALIASES.get(key, key))
    if gpu is not None:
        return gpu
    near = get_close_matches(key, [*GPUS, *_ALIASES], n=3, cutoff=0.5)
    meant = list(dict.fromkeys(_ALIASES.get(match, match) for match in near))
    remedy = f"did you mean {' or '.join(meant)}?" if meant else f"known cards: {', '.join(GPUS)}"
    raise UsageError(f"no card is called {name!r}", remedy=remedy)
