"""The section ``device``: the card, and what else lies on it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oomscope.config.schema.section import Section, Size


class DeviceConfig(Section):
    """The GPU, as far as memory goes."""

    gpu: str | None = None
    """A card by name, such as ``h100-80gb``; null means the card that is there on cuda, and h100-80gb elsewhere."""
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
    address_policy: Literal["ascending", "descending", "scattered"] = "ascending"
    """On virtual: the order of the addresses at which the card gives memory. PyTorch up to 2.11 decides by them which
    of several free blocks of one size it takes."""
