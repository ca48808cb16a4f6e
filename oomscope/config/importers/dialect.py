"""What a dialect is: a table of names, names that cost no memory, and what it computes from several together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from oomscope.config.importers.arguments import ENVIRONMENT
from oomscope.config.importers.draft import Draft
from oomscope.config.importers.rows import Kept, Row, To, Unmodelled, is_on

_CLOSE = 0.85
"""How like a row's name a mistyped one is, by difflib's ratio."""

_ENVIRONMENT: dict[str, Row] = {
    "ENV:PYTORCH_CUDA_ALLOC_CONF": To("allocator.conf", str),
    "ENV:PYTORCH_ALLOC_CONF": To("allocator.conf", str),
    "ENV:CUBLAS_WORKSPACE_CONFIG": To("device.cublas_workspace_config", str),
    "ENV:NVTE_CPU_OFFLOAD_V1": To("offload.nvte_cpu_offload_v1", lambda value: is_on(int(value))),
    "ENV:NCCL_GRAPH_REGISTER": To("cuda_graph.nccl_graph_register", lambda value: is_on(int(value))),
    "ENV:WORLD_SIZE": Kept(),
    "ENV:NVTE_FLASH_ATTN": Kept(),
    "ENV:NVTE_FUSED_ATTN": Kept(),
    "ENV:NVTE_UNFUSED_ATTN": Kept(),
    "ENV:PYTORCH_NO_CUDA_MEMORY_CACHING": Unmodelled("without the caching allocator nothing is reserved", ("0",)),
}
"""Name to what it becomes (PyTorch docs, notes/cuda; Transformer Engine docs, envvars)."""

_ENVIRONMENT_WITHOUT_MEMORY = """
ENV:CUDA_DEVICE_MAX_CONNECTIONS ENV:CUDA_VISIBLE_DEVICES ENV:CUDA_LAUNCH_BLOCKING ENV:CUDA_MODULE_LOADING
ENV:NCCL_* ENV:TORCH_NCCL_* ENV:UCX_* ENV:GLOO_* ENV:NVTE_ALLOW_NONDETERMINISTIC_ALGO ENV:NVTE_*_SM_MARGIN
ENV:NVTE_DEBUG* ENV:NVTE_APPLY_QK_LAYER_SCALING ENV:OMP_NUM_THREADS ENV:MASTER_ADDR ENV:MASTER_PORT ENV:RANK
ENV:LOCAL_RANK ENV:NODE_RANK ENV:PYTHON* ENV:HF_* ENV:TOKENIZERS_PARALLELISM ENV:WANDB_* ENV:SKIP_PYTEST ENV:N_REPEAT
ENV:SLURM_* ENV:LOGLEVEL ENV:LD_LIBRARY_PATH ENV:PATH ENV:HOME ENV:TRITON_* ENV:TORCHINDUCTOR_* ENV:NVSHMEM_*
"""
"""Environment variables without effect on memory, in every dialect."""


@dataclass(frozen=True)
class Dialect:
    """One way of writing a training job's configuration."""

    name: str
    title: str
    table: Mapping[str, Row]
    without_memory: str
    """Names that cost no memory, separated by white space; ``*`` stands for any characters."""
    finish: Callable[[Draft], None]
    """Fills in the dialect's defaults, and what follows from several names together."""

    def costs_no_memory(self, name: str) -> bool:
        """Whether ``name`` has nothing to do with a GPU's memory."""
        names = self.without_memory if not name.startswith(ENVIRONMENT) else _ENVIRONMENT_WITHOUT_MEMORY
        return _pattern(names).fullmatch(name) is not None

    def row_of(self, name: str) -> Row | None:
        """Return the row of ``name``, also where it is an environment variable."""
        return self.table.get(name) or _ENVIRONMENT.get(name)

    def nearest(self, name: str) -> str | None:
        """Return the name of a row that the unknown ``name`` may have been meant for."""
        close = get_close_matches(name, [*self.table, *_ENVIRONMENT], n=1, cutoff=_CLOSE)
        return close[0] if close else None


@cache
def _pattern(names: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in names.split()))
