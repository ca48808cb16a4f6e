"""Sections ``data``, ``device``, ``allocator``, ``probe``, ``cost``: the batch, the card, and how it is measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oomscope.config.schema.section import Count, Section, Size


class DataConfig(Section):
    """The batch (Megatron-LM ``training/arguments.py``)."""

    seq_length: Count = 1024
    """Tokens of a sequence."""
    micro_batch_size: Count = 1
    """Sequences of a microbatch."""
    num_microbatches: Count | None = None
    """Microbatches of a step on each pipeline; null: from global_batch_size, else 1."""
    global_batch_size: Count | None = None
    """Sequences of a step over all replicas."""
    create_attention_mask_in_dataloader: bool = True
    """The batch brings a boolean mask of micro_batch_size * seq_length^2 bytes to the first and last stage, whether or
    not the attention reads it; checkpoints keep it until backward."""


class DeviceConfig(Section):
    """The GPU, as far as memory goes."""

    gpu: str | None = None
    """A card by name, such as ``h100-80gb``; null means the card that is there on cuda, and h100-80gb elsewhere."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """On virtual: the cards that each process of a program sees; a launcher's process sees as many as it starts."""
    limit: Size | None = None
    """A card with this many bytes in all, instead of the card's real total."""
    non_torch_bytes: Size = 1024**3
    """Bytes of the card outside the allocator (CUDA context, NCCL, cuBLAS handles). On cuda it is measured."""
    other_process_bytes: Size = 0
    """Bytes of the card that other processes hold. On cuda it is measured."""
    cublas_workspace_config: str | None = None
    """CUBLAS_WORKSPACE_CONFIG, such as ``:4096:8``; null means torch's default for the architecture."""
    stream_lag: int = Field(default=0, ge=0, le=2**31 - 1)
    """On virtual: an event recorded on a side stream completes after this many further events of its stream, or when
    the stream is synchronised."""
    address_policy: Literal["spans", "ascending", "scattered"] = "spans"
    """On virtual: the order of the addresses that cudaMalloc returns: as a driver for Linux gave them on an H100,
    upwards, or random. PyTorch up to 2.11 decides by them which of several free blocks of one size it takes."""

    compute_values: bool = False
    """On virtual: the host computes what the card's kernels would, so that sizes that depend on values are real. It
    takes as long as the program does on the host, and as much host memory as it uses of the card."""


class AllocatorConfig(Section):
    """The CUDA caching allocator (PyTorch docs, notes/cuda)."""

    conf: str = ""
    """PYTORCH_ALLOC_CONF, such as ``expandable_segments:True,max_split_size_mb:128``."""


class ProbeConfig(Section):
    """How the measurement is made."""

    backend: Literal["auto", "virtual", "cuda"] = "auto"
    """Where to measure; auto takes cuda where there is a card, else virtual."""
    rank: Annotated[int, Field(ge=0, le=2**31 - 1)] | Literal["first", "last", "worst"] = "first"
    """Which rank of the world this process plays; worst probes one rank of every distinct pipeline stage."""
    world_size: Count | None = None
    """For a harness or program: the ranks of its world, one of which is played; null begins no world, 1 one of this
    process alone. The world of a configuration is the product of its parallel sizes."""
    iterations: Count = 2
    """Training steps."""
    seed: int = Field(default=1234, ge=0, le=2**63 - 1)
    """Seed of weights, data and dropout."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Seconds after which the probe is ended."""
    max_entries: Count = 1_000_000
    """On cuda: size of the recorded event ring."""
    max_frames: Count = 100
    """Python frames kept of each stack."""


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
