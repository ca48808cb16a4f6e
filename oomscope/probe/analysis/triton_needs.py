"""What a machine lacks for Triton, which compiles helpers in C when it launches its first kernel.

Triton's own errors are that no compiler was found, or that a long command failed; the reason is then on stderr only.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

_NO_COMPILER = "Failed to find C compiler"  # triton/runtime/build.py
_COMMAND_FAILED = "returned non-zero exit status"  # subprocess.CalledProcessError


def absent() -> str | None:
    """Return in one line what is absent for this process's Python; None where nothing is."""
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
