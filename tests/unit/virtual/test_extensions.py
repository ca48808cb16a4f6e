"""Libraries that the virtual card cannot stand in for are named: a runtime inside, or a call that the card lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomscope.virtual.extensions import NO_IPC, own_runtimes, unmet_by
from tests.unit.virtual.libraries import compile_library, needs_compiler
from tests.unit.virtual.on_card import on_card

RUNTIME_INSIDE = """
#include <dlfcn.h>
#include <stddef.h>
__attribute__((visibility("hidden"))) int cudaMalloc(void **pointer, size_t bytes) {
  const void *table;
  int (*tables)(const void **, const void *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable");
  return tables(&table, "sixteen bytes 16");
}
int allocate(void) { void *pointer; return cudaMalloc(&pointer, 512); }
"""
"""Finds the driver by itself, as a static runtime does, and asks it for its tables."""


@needs_compiler
def test_a_runtime_inside_a_library_is_named(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "inside.so", RUNTIME_INSIDE)
    script = f"""
        torch.zeros(1, device="cuda")
        import ctypes
        from oomscope.probe.analysis.failures import describe
        status = ctypes.CDLL({str(library)!r}).allocate()
        say([status, describe(RuntimeError("CUDA error: not found")), state().unsupported])
        """
    status, said, unsupported = on_card(script, preamble="torch")
    assert status == 500
    assert said == (
        f"RuntimeError: CUDA error: not found; {library} has its own CUDA runtime, which the virtual card cannot "
        "replace; build it with nvcc --cudart=shared, or measure it with --backend cuda"
    )
    assert list(own_runtimes(unsupported)) == [said.partition("; ")[2]]


@needs_compiler
def test_a_call_that_the_card_lacks_is_named(tmp_path: Path) -> None:
    wants = ("cudaMalloc", "cudaSomethingNew", "cudaSomethingElse")
    source = "".join(f"int {name}(void);\n" for name in wants)
    body = " + ".join(f"{name}()" for name in wants)
    library = compile_library(tmp_path / "wanting.so", f"{source}int use(void) {{ return {body}; }}\n")
    script = f"""
        import ctypes
        from oomscope.probe.analysis.failures import describe
        try:
            ctypes.CDLL({str(library)!r})
        except OSError as error:
            say(describe(error))
        """
    said = on_card(script, preamble="torch")
    assert said.startswith(f"{library} calls cudaSomething")
    assert said.endswith(", which the virtual card lacks; measure it with --backend cuda")
    assert {"cudaSomethingNew", "cudaSomethingElse"} == set(
        said.split(" calls ")[1].partition(", which")[0].split(", ")
    )


@needs_compiler
@pytest.mark.parametrize("name", ["_ZN3c104cuda3newEv", "some_function"])
def test_what_others_lack_is_not_the_card_s(tmp_path: Path, name: str) -> None:
    library = compile_library(tmp_path / "other.so", f"int {name}(void);\nint use(void) {{ return {name}(); }}\n")
    assert unmet_by(f"{library}: undefined symbol: {name}") is None
    assert unmet_by(f"{tmp_path}/absent.so: undefined symbol: cudaMalloc") is None
    assert unmet_by("a ValueError") is None


def test_sharing_tensors_between_processes_is_named() -> None:
    script = """
        from oomscope.probe.analysis.failures import describe
        other = describe(RuntimeError("CUDA error: operation not supported"))
        try:
            torch.zeros(1, device="cuda").untyped_storage()._share_cuda_()
        except RuntimeError as error:
            say([describe(error), other])
        """
    said, other = on_card(script, preamble="torch")
    assert said == NO_IPC
    assert other == "RuntimeError: CUDA error: operation not supported"
