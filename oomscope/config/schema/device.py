"""The section ``device``: the card, and what else lies on it."""

from __future__ import annotations

from pydantic import Field

from oomscope.config.schema.section import Section, Size


class DeviceConfig(Section):
    """The GPU, as far as memory goes."""

    gpu: str | None = None
    """A card by name, such as ``h100-80gb``; null means h100-80gb on sim and the card found on cuda."""
    limit: Size | None = None
    """A card with this many bytes in all, instead of the card's real total."""
    non_torch_bytes: Size = 1024**3
    """On sim: bytes of the card outside the allocator (CUDA context, NCCL, cuBLAS handles). On cuda it is measured."""
    other_process_bytes: Size = 0
    """On sim: bytes of the card that other processes hold."""
    cublas_workspace_config: str | None = None
    """CUBLAS_WORKSPACE_CONFIG, such as ``:4096:8``; null means torch's default for the architecture."""
    op_temporaries: bool = True
    """On sim: allocate the known temporaries inside CUDA kernels and the cuBLAS workspaces."""
    stream_lag: int = Field(default=0, ge=0, le=2**31 - 1)
    """On sim: an event recorded on a side stream completes after this many further allocations (or when the
    stream is synchronised)."""
