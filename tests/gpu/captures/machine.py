"""The machine that captures are made on: versions, the card, and what a CUDA context takes before any tensor."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from typing import Any

import torch


def describe(_spec: dict[str, Any]) -> dict[str, Any]:
    """Return versions, the card and the bytes that the driver counts before and after the first tensor.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    before = used_bytes()
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "total_memory": properties.total_memory,
        "mem_get_info": {"free": free, "total": total},
        "driver": _smi("driver_version"),
        "used_bytes": {"before": before, "with_context": used_bytes()},
        "reserved_bytes": torch.cuda.memory_reserved(),
        "allocator_settings": torch.cuda.memory._snapshot()["allocator_settings"],  # type: ignore[no-untyped-call]
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "CUBLAS_"))},
    }


def used_bytes() -> int | None:
    """Return the bytes in use on the first card, as NVML counts them; None where nothing says it."""
    try:
        import pynvml
    except ImportError:
        mib = _smi("memory.used")
        return int(mib.split()[0]) << 20 if mib else None
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except pynvml.NVMLError:
        return None


def _smi(field: str) -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
