"""The configuration: one model a section, keys named as Megatron-Core names them.

A section says where its keys come from, a field its meaning and unit under its declaration; ``oomscope config
schema`` prints them as JSON Schema. A model here only says what a key *is*; ``oomscope.config.rules`` says what may be
combined and, in ``unmodelled``, what is refused. Names of other programs are those of ``oomscope.config.importers``.
"""

from __future__ import annotations

from oomscope.config.schema.activations import (
    OffloadConfig,
    OffloadModule,
    RecomputeConfig,
    RecomputeModule,
)
from oomscope.config.schema.config import Config
from oomscope.config.schema.measurement import AllocatorConfig, CostConfig, DataConfig, DeviceConfig, ProbeConfig
from oomscope.config.schema.model import FlashKernels, ModelConfig, Softmax
from oomscope.config.schema.parallel import ParallelConfig
from oomscope.config.schema.section import Count, Section, Size
from oomscope.config.schema.training import OptimizerConfig, PrecisionConfig

__all__ = [
    "AllocatorConfig",
    "Config",
    "CostConfig",
    "Count",
    "DataConfig",
    "DeviceConfig",
    "FlashKernels",
    "ModelConfig",
    "OffloadConfig",
    "OffloadModule",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "ProbeConfig",
    "RecomputeConfig",
    "RecomputeModule",
    "Section",
    "Size",
    "Softmax",
]
