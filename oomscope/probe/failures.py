"""What an exception of the measured code means: out of memory (and who refused), untestable here, or its own fault.

The patterns are the messages of torch, cuBLAS, NCCL and the CUDA runtime; each names where it comes from. Nothing
here imports torch: exceptions are told apart by the names of their classes.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Literal

from oomscope.errors import UntestableError
from oomscope.probe.measurement import FailedIn
from oomscope.units import parse_size

# Status names: aten/src/ATen/cuda/Exceptions.cpp; "CUDA error": c10/cuda/CUDAException.cpp; "CUDA driver error":
# c10/cuda/driver_api.h; NCCL: torch/csrc/distributed/c10d/NCCLUtils.cpp.
_OUTSIDE = re.compile(
    r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED"
    r"|CUDA (?:driver )?error: out of memory"
    r"|ncclUnhandledCudaError|NCCL.*(?:Cuda failure|out of memory)",
    re.DOTALL,
)
# c10/core/impl/alloc_cpu.cpp; aten/src/ATen/cuda/CachingHostAllocator.cpp; errno's own text.
_HOST = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough)|cudaHost(?:Alloc|Register)|pin_memory.*out of memory"
    r"|Cannot allocate memory"
)

_UNTESTABLE_ON_SIM = (
    (
        re.compile(
            r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
            r"|Cannot access accelerator device when none is available|deserialize object on a CUDA device"
            r"|Expected a 'cuda' device|cudaErrorNoDevice|Cannot get CUDA generator"
        ),
        "asks for CUDA by name; take the device from ctx.device, or probe on a GPU with --backend cuda",
    ),
    (
        re.compile(r"ProcessGroupNCCL is only supported with GPUs|Distributed package doesn't have NCCL"),
        "starts NCCL by itself; leave the default process group to the probe",
    ),
    (
        re.compile(r"^(?:torch\._dynamo|torch\._inductor)\."),
        "uses torch.compile, whose generated kernels the simulated device cannot follow; probe with --backend cuda",
    ),
    (
        re.compile(r"^triton\.|No module named '(?:triton|cupy|flash_attn|transformer_engine|apex)"),
        "uses custom GPU kernels, which the simulated device cannot run; probe with --backend cuda",
    ),
    (
        re.compile(
            r"\.(?:DataDependentOutput|DynamicOutputShape|UnsupportedOperator|UnsupportedFakeTensor)Exception:"
            r"|\.GuardOnDataDependentSymNode:"
        ),
        "depends on values that the simulated device does not compute; probe with --backend cuda",
    ),
)
"""What to find in ``module.Class: message`` of an exception, and what it says of the target. The classes of the
last row are those of torch/_subclasses/fake_tensor.py and torch/fx/experimental/symbolic_shapes.py."""

_TRIED = re.compile(r"Tried to allocate (?P<size>[\d.]+ (?:bytes|[KMGT]iB))")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and what it was raised from or during, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def allocation_failed_in(error: BaseException) -> FailedIn | None:
    """Return who refused memory when ``error``, or what it was raised from, says that memory ran out; else None.

    ``device`` is the caching allocator's ``torch.OutOfMemoryError``; ``outside`` a library's own device
    allocation; ``host`` pageable or pinned host memory.
    """
    for link in chain(error):
        if type(link).__name__ == "OutOfMemoryError":
            return "device"
        if isinstance(link, MemoryError):
            return "host"
        if isinstance(link, (RuntimeError, OSError)):
            if _HOST.search(str(link)):
                return "host"
            if _OUTSIDE.search(str(link)):
                return "outside"
    return None


def requested_bytes(message: str) -> int:
    """Return the bytes that torch's message says were asked for (rounded as printed), 0 where it says nothing."""
    match = _TRIED.search(message)
    return parse_size(match["size"].replace("bytes", "B")) if match else 0


def untestable_reason(error: BaseException, backend: Literal["sim", "cuda"]) -> str | None:
    """Return why ``backend`` cannot run this target; None where the target itself is at fault."""
    for link in chain(error):
        if isinstance(link, UntestableError):
            return str(link)
        if backend == "cuda" or isinstance(link, SyntaxError):
            continue
        text = f"{type(link).__module__}.{type(link).__qualname__}: {link}"
        for pattern, reason in _UNTESTABLE_ON_SIM:
            if pattern.search(text):
                return f"the target {reason} ({_one_line(link)})"
    return None


def describe(error: BaseException, *, roots: tuple[str, ...] = ()) -> str:
    """Return ``error`` in one line, with the innermost place under ``roots`` that it passed through."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if any(frame.filename.startswith(root) for root in roots):
            place = f" ({frame.filename}:{frame.lineno} in {frame.name})"
    return _one_line(error) + place


def details(error: BaseException) -> str:
    """Return the whole traceback, for the log."""
    return "".join(traceback.format_exception(error))


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
