"""Shared libraries made by the compiler, for tests that read or load them: a small card, and what wants it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler on PATH")

CARD_SOURCES = {
    "api.h": """
#pragma once
#define API __attribute__((visibility("default")))
#ifdef __cplusplus
extern "C"
#endif
int answer(void);
""",
    "core.cpp": """
#include "api.h"
#include <map>
#include <string>
static std::map<std::string, int> seen;
int answer() { return 41 + ++seen["asked"]; }
""",
    "runtime.c": """
#include "api.h"
API int cudaMalloc(void) { return answer(); }
API int not_an_interface(void) { return 1; }
""",
}
"""A card whose cudaMalloc answers 42 when it is called first."""


def compile_library(path: Path, source: str, *options: str) -> Path:
    """Compile C ``source`` into the shared library ``path``, in its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-o", path.name, "-x", "c", "-", "-x", "none", *options]
    subprocess.run(command, input=source, text=True, check=True, cwd=path.parent)
    return path


def write_wheel(folder: Path, functions: tuple[str, ...]) -> Path:
    """Write what passes for NVIDIA's own libcudart.so.13, whose functions answer 7, and return it."""
    source = "".join(f"int {name}(void) {{ return 7; }}\n" for name in functions)
    folder.mkdir(parents=True)
    (folder / "versions.map").write_text("libcudart.so.13 { global: *; };\n")
    options = ("-Wl,-soname,libcudart.so.13", "-Wl,--version-script=versions.map")
    return compile_library(folder / "libcudart.so.13", source, *options)


def write_torch(folder: Path, *, cuda: str | None = "13.2", wants: tuple[str, ...] = ("cudaMalloc",)) -> Path:
    """Write what passes for an installed torch into ``folder``, and return the library of it that uses CUDA.

    Args:
        folder: what goes on ``sys.path``.
        cuda: the CUDA version that it is built for.
        wants: functions of libcudart.so.13 that it wants; its own ``use`` returns the answer of the first.
    """
    torch = folder / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("")
    (torch / "version.py").write_text(f"__version__ = '2.15.0'\ncuda: Optional[str] = {cuda!r}\n")
    wheel = write_wheel(folder / "linked-against", wants)
    source = "".join(f"int {name}(void);\n" for name in wants)
    source += f"int use(void) {{ return {' + 0 * '.join(f'{name}()' for name in wants)}; }}\n"
    return compile_library(torch / "lib" / "libtorch_cuda.so", source, str(wheel))
