"""What an exception of the measured code means: out of memory (and who refused), untestable here, or its own fault.

The patterns are the messages of torch, cuBLAS, NCCL, Triton and the CUDA runtime; each names where it comes from.
Nothing here imports torch: exceptions are told apart by the names of their classes.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from oomscope import virtual
from oomscope.errors import InputError, MachineUnfitError, OomscopeError, UntestableError, UsageError
from oomscope.probe.measurement import Ending, Measurement, OutOfMemory, RefusedElsewhere
from oomscope.probe.result import ErrorKind, Failure
from oomscope.snapshot.trace import Frame, Moment, Stack
from oomscope.snapshot.verdict_types import FailedIn
from oomscope.units import parse_size
from oomscope.virtual.extensions import own_runtimes, unmet_by, unshared_by

# c10/cuda/CUDACachingAllocator.cpp: words of the caching allocator alone.
_ALLOCATOR = re.compile(r"out of memory\. Tried to allocate")
_TORCH_SAID = re.compile(rf"{_ALLOCATOR.pattern}|\btorch\.(?:cuda\.)?OutOfMemoryError\b")
_LONGEST_MESSAGE = 500
_LONGEST_REASON = 240
"""Characters of an error in one line; its whole text is in the details."""
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

# Words of the caching allocator, of alloc_cpu.cpp and of numpy/_core/_exceptions.py.
_TRIED = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate) (?P<number>[\d.]+) (?P<unit>bytes|[KMGT]iB)")

remarks: Final[list[str]] = []
"""Hints added to the message of any failure of this process, such as that a played world answered for other ranks."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An exception's report that memory ran out; plain data, so that no frame of the target is kept alive."""

    failed_in: Literal["device"] | FailedIn
    """What refused the memory; ``device`` is the caching allocator."""
    message: str
    """One line: the exception's text, its class where it has none."""
    requested_bytes: int | None
    """Requested bytes in the text (rounded as printed); None where it names none."""
    stack: Stack
    """Stack of the exception, innermost frame first."""


def chain(error: BaseException, *, suppressed: bool = False) -> Iterator[BaseException]:
    """Yield ``error`` and what it was raised from or during, outermost first; ``suppressed``: past ``from None``."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        is_hidden = current.__suppress_context__ and not suppressed
        current = current.__cause__ or (None if is_hidden else current.__context__)


def text_of_error(error: BaseException) -> str:
    """Return the text of ``error``, which may be the program's own class and fail to give one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever it raises, there is no text
        return "(an error without readable text)"


def refusal_in(error: BaseException) -> Refusal | None:
    """Return who refused memory when ``error``, or what it was raised from, reports that memory ran out; else None."""
    for link in chain(error):
        failed_in = _failed_in(link)
        if failed_in is not None:
            message = " ".join(text_of_error(link).split()) or type(link).__name__
            return Refusal(
                failed_in=failed_in, message=message, requested_bytes=_requested_bytes(message), stack=_stack(link)
            )
    return None


def refusal_in_text(line: str) -> Refusal | None:
    """Return the refusal that ``line``, as a program printed it, reports in torch's words; None without one."""
    if not _TORCH_SAID.search(line):
        return None
    message = " ".join(line.split())[:_LONGEST_MESSAGE]
    return Refusal(failed_in="device", message=message, requested_bytes=_requested_bytes(message), stack=())


def _failed_in(error: BaseException) -> Literal["device"] | FailedIn | None:
    """Return the refusal that ``error`` alone reports."""
    if type(error).__name__ == "OutOfMemoryError":
        if not type(error).__module__.startswith("torch"):
            return "outside"
        is_allocators = any(_ALLOCATOR.search(text_of_error(link)) for link in chain(error, suppressed=True))
        return "device" if is_allocators else "program"
    if isinstance(error, MemoryError):
        return "host"
    if isinstance(error, (RuntimeError, OSError)):
        if _HOST.search(text_of_error(error)):
            return "host"
        if _OUTSIDE.search(text_of_error(error)):
            return "outside"
    return None


def _requested_bytes(message: str) -> int | None:
    match = _TRIED.search(message)
    if match is None:
        return None
    # numpy prints three digits and the point: "728. TiB"
    return parse_size(match["number"].rstrip(".") + match["unit"].replace("bytes", "B"))


def _stack(error: BaseException) -> Stack:
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return tuple(reversed(frames))


def untestable_reason(error: BaseException) -> str | None:
    """Return why this target cannot be measured here; None where the target itself is at fault."""
    return next((text_of_error(link) for link in chain(error) if isinstance(link, UntestableError)), None)


def describe(error: BaseException, *, roots: tuple[str, ...] = ()) -> str:
    """Return ``error`` in one line, with the innermost place under ``roots`` that it passed through."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if any(frame.filename.startswith(root) for root in roots):
            place = f" ({frame.filename}:{frame.lineno} in {frame.name})"
    unfit = own_runtimes(virtual.state().unsupported) if virtual.is_loaded() else ()
    return "; ".join([_one_line(error) + place, *unfit, *remarks])


def details(error: BaseException) -> str:
    """Return the whole traceback, for the log."""
    return "".join(traceback.format_exception(error))


def _one_line(error: BaseException) -> str:
    text = " ".join(text_of_error(error).split())
    understood = absent_by(text)
    if understood is None and virtual.is_loaded():
        understood = unmet_by(text) or unshared_by(text, virtual.state().unsupported)
    if understood is not None:
        return understood
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r})"
    if len(text) > _LONGEST_REASON:
        text = f"{text[: _LONGEST_REASON - 1]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_NO_COMPILER = "Failed to find C compiler"  # triton/runtime/build.py
_COMMAND_FAILED = "returned non-zero exit status"  # subprocess.CalledProcessError


def absent() -> str | None:
    """Return in one line what Triton, which compiles helpers in C, lacks on this machine; None where nothing is."""
    if not (os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")):
        return "Triton needs a C compiler, and there is none: install gcc, or name one in CC"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.exists():
        package = f"python{sysconfig.get_python_version()}-dev"
        return (
            f"Triton needs Python's headers, and {headers} is absent: install {package}, or use a Python with headers"
        )
    return None


def absent_by(text: str) -> str | None:
    """Return what is absent where ``text``, an error of this process, says that Triton could not compile; else None."""
    command = f"-I{sysconfig.get_path('include')}"
    if _NO_COMPILER in text or (_COMMAND_FAILED in text and command in text):
        return absent()
    return None


def out_of_memory_of(refusal: Refusal, measurement: Measurement, moment: Moment) -> OutOfMemory:
    """Return what ended a run: a request that the caching allocator recorded, or a refusal that it knows nothing of.

    A refusal may be worded as one of the allocator's own without being one.
    """
    if refusal.failed_in == "device" and measurement.oom is not None:
        return replace(measurement.oom, message=measurement.oom.message or refusal.message)
    return RefusedElsewhere(
        failed_in="program" if refusal.failed_in == "device" else refusal.failed_in,
        message=refusal.message,
        requested_bytes=refusal.requested_bytes,
        moment=moment,
        stack=refusal.stack,
    )


def not_run(error: OomscopeError) -> Ending:
    """Return the ending of a run that could not begin."""
    return Ending(measurement=None, failure=Failure(kind=kind_of_own_error(error), message=str(error)))


def kind_of_own_error(error: OomscopeError) -> ErrorKind:
    """Return the kind of a failure that oomscope itself found before anything of the target ran."""
    if isinstance(error, MachineUnfitError):
        return "unfit"
    return "usage" if isinstance(error, (InputError, UsageError)) else "setup"
