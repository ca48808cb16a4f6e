"""What ``CUBLAS_WORKSPACE_CONFIG`` says: the bytes of the workspace that torch gives to cuBLAS."""

from __future__ import annotations

import re

from oomscope.errors import ConfigError
from oomscope.probe.machine.environment import CUBLAS_VARIABLE
from oomscope.units import KiB

_PAIR = re.compile(r":(\d+):(\d+)")


def workspace_bytes(config: str) -> int:
    """Return the bytes of ``config``, a sum of ``:KiB:count``.

    Source: PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.

    Raises:
        ConfigError: there is no ``:KiB:count`` in it. (Torch warns, and takes its default.)
    """
    pairs = _PAIR.findall(config)
    if not pairs:
        raise ConfigError(f"cannot read {config!r}", where=CUBLAS_VARIABLE, remedy="give it as :4096:8")
    return sum(int(size) * int(count) for size, count in pairs) * KiB
