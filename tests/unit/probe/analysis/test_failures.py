"""What an exception of the measured code means, and what Triton could not compile for want of."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from oomscope.probe.analysis.failures import Refusal, absent, chain, describe, details, refusal_in
from oomscope.units import GiB, MiB

OOM = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.40 GiB is free."
)


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (torch.OutOfMemoryError(OOM), "device"),
        (torch.OutOfMemoryError("mine"), "program"),
        (type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})("Out of memory"), "outside"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "outside"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "outside"),
        (RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"), "outside"),
        (RuntimeError("NCCL error in: init.cpp, unhandled cuda error\nCuda failure 2 'out of memory'"), "outside"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"), "host"),
        (MemoryError(), "host"),
        (OSError(12, "Cannot allocate memory"), "host"),
        (ValueError("CUDA error: out of memory, said a test"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_the_component_that_refused_memory_is_reported(error: BaseException, where: str | None) -> None:
    refusal = refusal_in(error)
    assert (refusal and refusal.failed_in) == where


def raised_from(cause: BaseException | None) -> RuntimeError:
    """Return an error that was raised while an out-of-memory error was handled."""
    try:
        try:
            raise torch.OutOfMemoryError(OOM)
        except torch.OutOfMemoryError as oom:
            raise RuntimeError("training failed") from (oom if cause is None else cause)
    except RuntimeError as error:
        return error


def test_an_out_of_memory_error_is_seen_through_what_wraps_it() -> None:
    assert refusal_in(raised_from(None)).failed_in == "device"


def test_the_programs_own_word_for_what_the_allocator_refused_is_the_allocators() -> None:
    def load() -> None:
        try:
            raise torch.OutOfMemoryError(OOM)
        except torch.OutOfMemoryError:
            raise torch.OutOfMemoryError("the batch is too large") from None

    with pytest.raises(torch.OutOfMemoryError, match="the batch") as caught:
        load()
    assert refusal_in(caught.value).failed_in == "device"


def test_it_does_not_count_where_another_cause_is_named() -> None:
    assert refusal_in(raised_from(KeyError("the real cause"))) is None


def test_a_circular_chain_of_exceptions_ends() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert list(chain(first)) == [first, second]


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (OOM, 2.5 * GiB),
        ("Tried to allocate 20.00 MiB.", 20 * MiB),
        ("Tried to allocate 512 bytes.", 512),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000 bytes. Error code 12", 4_000_000),
        ("Unable to allocate 728. TiB for an array with shape (10000000, 10000000)", 728 * 1024 * GiB),
        ("nothing", None),
    ],
)
def test_the_request_is_read_from_the_message(message: str, size: int | None) -> None:
    assert refusal_in(MemoryError(message)) == Refusal(
        failed_in="host", message=message, requested_bytes=size, stack=()
    )


def fail() -> None:
    raise ValueError("two\nlines")


def test_a_long_error_is_cut_and_keeps_its_place() -> None:
    with pytest.raises(AssertionError) as caught:
        raise AssertionError("parameters " + ", ".join(f"layers.{i}.weight" for i in range(500)))
    text = describe(caught.value, roots=(__file__,))
    assert text.startswith("AssertionError: parameters layers.0.weight")
    assert len(text.partition("… (")[0]) == len("AssertionError: ") + 239
    assert text.endswith(f"in {test_a_long_error_is_cut_and_keeps_its_place.__name__})")
    assert "layers.499.weight" in details(caught.value)


def test_an_error_is_described_in_one_line_with_its_place() -> None:
    with pytest.raises(ValueError, match="two") as caught:
        fail()
    text = describe(caught.value, roots=(__file__,))
    assert text.startswith("ValueError: two lines (")
    assert text.endswith("in fail)")
    assert describe(caught.value, roots=("/elsewhere",)) == "ValueError: two lines"
    assert "Traceback" in details(caught.value)
    assert describe(SystemExit(3)) == "called sys.exit(3)"
    assert describe(KeyError()) == "KeyError"


NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.")


def build_failed(include: Path) -> BaseException:
    return subprocess.CalledProcessError(1, ["gcc", "main.c", "-O3", "-shared", "-o", "main.so", f"-I{include}"])


@pytest.fixture
def include(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Python's headers, empty."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "include" else "")
    monkeypatch.setenv("CC", "cc")
    return tmp_path


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(NO_COMPILER) == "Triton needs a C compiler, and there is none: install gcc, or name one in CC"


def test_no_headers(include: Path) -> None:
    said = describe(build_failed(include))
    assert said.startswith(f"Triton needs Python's headers, and {include}/Python.h is absent: install python3.")


def test_what_fails_for_another_reason_keeps_its_message(include: Path) -> None:
    other = subprocess.CalledProcessError(1, ["gcc", "other.c"])
    assert describe(other).startswith("CalledProcessError: Command")
    (include / "Python.h").touch()
    assert absent() is None
    assert describe(build_failed(include)).startswith("CalledProcessError: Command")
    assert describe(NO_COMPILER).startswith("RuntimeError: Failed to find C compiler")
