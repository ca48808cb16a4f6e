"""The machine that captures are made on: versions, the card, and what a CUDA context and NCCL take on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.gpu.captures import collectives
from tests.gpu.captures.running import so_far


def describe(spec: dict[str, Any]) -> dict[str, Any]:
    """Return versions, the card and the bytes that the driver counts before and after the first tensor.

    What cannot be told, as in a container that forbids it, is None, and ``untold`` says why.

    Raises:
        RuntimeError: there is no CUDA device.
    """
    untold: dict[str, str] = {}

    def told(name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 # the card is known without it
            untold[name] = repr(error)
            return None

    before = told("used_bytes", used_bytes)
    torch.cuda.init()
    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    described = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": told("cudnn", torch.backends.cudnn.version),
        "python": platform.python_version(),
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "total_memory": properties.total_memory,
        "mem_get_info": {"free": free, "total": total},
        "driver": _smi("driver_version"),
        "used_bytes": {"before": before, "with_context": told("used_bytes", used_bytes)},
        "reserved_bytes": torch.cuda.memory_reserved(),
        "allocator_settings": told("allocator_settings", _allocator_settings),
        "untold": untold,
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "CUBLAS_"))},
    }
    if "folder" not in spec:
        return described
    so_far(spec, {**described, "collectives": {"failed": "ended without a word"}})
    return {**described, "collectives": told("collectives", lambda: collectives.measured(Path(spec["folder"])))}


def _allocator_settings() -> Any:
    return torch.cuda.memory._snapshot()["allocator_settings"]  # type: ignore[no-untyped-call]


def used_bytes() -> int | None:
    """Return the bytes in use on the first card, as NVML counts them; None where nothing says it."""
    try:
        import pynvml
    except ImportError:
        mib = _smi("memory.used")
        return int(mib.split()[0]) << 20 if mib and mib[:1].isdecimal() else None  # else "[N/A]", or what is forbidden
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
    return None if done.returncode else done.stdout.strip() or None
