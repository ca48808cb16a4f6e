"""The section ``data``: sequences, microbatches and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from oomscope.config.schema.section import Count, Section


class DataConfig(Section):
    """The batch."""

    SOURCE = "Megatron-LM training/arguments.py"
    SOURCES: ClassVar[Mapping[str, str]] = {
        "num_microbatches": "Megatron-Core num_microbatches_calculator.py",
    }

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
