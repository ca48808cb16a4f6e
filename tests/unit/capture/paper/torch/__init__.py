"""As much of torch as a recording asks for, for programs that run in a process of their own."""

import os
from types import SimpleNamespace

from . import cuda

__version__ = "2.13.0+paper"
backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: "WITHOUT_CUDA" not in os.environ))


class OutOfMemoryError(RuntimeError):
    pass


_C = SimpleNamespace(
    _cuda_setMemoryMetadata=None,
    _cuda_isHistoryEnabled=lambda: bool(cuda.memory.log) and cuda.memory.log[-1] == "all",
    _cuda_attach_out_of_memory_observer=cuda.memory.observers.append,
)
