"""The section ``allocator``: settings of PyTorch's caching allocator."""

from __future__ import annotations

from oomscope.config.schema.section import Section


class AllocatorConfig(Section):
    """The CUDA caching allocator."""

    SOURCE = "PyTorch docs, notes/cuda: PYTORCH_ALLOC_CONF"

    conf: str = ""
    """PYTORCH_ALLOC_CONF, such as ``expandable_segments:True,max_split_size_mb:128``."""
