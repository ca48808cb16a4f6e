"""Takes the virtual card into this process, before torch: after that, torch's CUDA build imports and finds the card.

The libraries are loaded global and by full path, the one with the code first. The dynamic loader then resolves what
torch wants from the card, whatever other libraries of the same names are mapped later (NVIDIA's wheels, a driver): it
searches in the order of loading. Nothing of CUDA is called, so that a fork of this process can still choose its card.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from oomscope.errors import MachineUnfitError
from oomscope.torch_versions import NEWEST, OLDEST, text_of
from oomscope.virtual.elf import read_elf
from oomscope.virtual.installed_torch import (
    InstalledTorch,
    find_torch,
    missing_libraries,
    required_torch,
    requirements_of,
)
from oomscope.virtual.sonames import CARD, SONAMES, file_of, sonames_for

LIBRARIES = Path(__file__).resolve().parent / "lib"
CONTAINER = 'docker run -it --rm -v "$PWD":/work -w /work python:3.12 bash'
"""Command for a Linux with Python on macOS."""
_WHERE = "virtual card"
_NAMED_AT_MOST = 5
_TOLD = {
    # Torch caches on disk what NVRTC compiled, by the card's capability: a real card would load the virtual card's.
    "USE_PYTORCH_KERNEL_CACHE": "0",
    # Triton links its helpers with the driver, and looks for it with ldconfig.
    "TRITON_LIBCUDA_PATH": str(LIBRARIES),
    # The processes in which torch.compile would compile import torch, and have no card.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""Variables that torch and Triton read when they are imported."""

_loaded: ctypes.CDLL | None = None


def load() -> None:
    """Load the virtual card; does nothing where it is loaded.

    Raises:
        MachineUnfitError: it cannot be: not Linux, no CUDA build of torch, torch imported already, the library is
            missing or lacks something that this torch wants, or NVIDIA's own is in the process already.
    """
    global _loaded  # noqa: PLW0603 - what a process has loaded is a fact of the process
    if _loaded is None:
        torch = check()
        if "torch" in sys.modules:
            raise MachineUnfitError(
                "torch was imported before the virtual card was loaded", where=_WHERE, remedy="load the card first"
            )
        _loaded = load_libraries(LIBRARIES, sonames_for(torch.cuda or ""))
        os.environ.update(_TOLD)


def load_where_needed() -> None:
    """Load the virtual card where torch's CUDA build cannot be imported otherwise, for work that needs no GPU.

    That is where NVIDIA's libraries are not installed. Where there is a GPU, or torch needs none of them, nothing is
    loaded, and nothing that is wrong with torch is said: importing it will show that.

    Raises:
        MachineUnfitError: as for :func:`load`.
    """
    if is_loaded() or "torch" in sys.modules or not sys.platform.startswith("linux") or has_gpu():
        return
    torch = find_torch()
    if torch is None or torch.cuda is None:
        return
    with contextlib.suppress(OSError, ValueError):
        if not missing_libraries(torch):
            return
    load()


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether the machine shows a GPU: NVIDIA's device files, or those of Windows' subsystem for Linux."""
    return any(any(devices.glob(name)) for name in ("nvidia[0-9]*", "dxg"))


def check() -> InstalledTorch:
    """Return the torch that the card can be loaded for; nothing is loaded.

    Raises:
        MachineUnfitError: it cannot be: not Linux, no CUDA build of torch, or the library is missing or lacks something
            that this torch wants.
    """
    if not sys.platform.startswith("linux"):
        raise MachineUnfitError(
            f"needs Linux, and this is {sys.platform}", where=_WHERE, remedy=f"use a container: {CONTAINER}"
        )
    if not (LIBRARIES / CARD).is_file():
        raise MachineUnfitError(f"{CARD} is missing", where=_WHERE, remedy=_rebuild())
    torch = _torch_with_cuda()
    _check_requirements(torch)
    return torch


def is_loaded() -> bool:
    """Whether this process, or the one that it was forked from, has loaded the card."""
    return _loaded is not None


def library() -> ctypes.CDLL:
    """Return the card's library.

    Raises:
        RuntimeError: it is not loaded.
    """
    if _loaded is None:
        raise RuntimeError("the virtual card is not loaded in this process")
    return _loaded


def load_libraries(folder: Path, sonames: Iterable[str] = SONAMES) -> ctypes.CDLL:
    """Load the card's own library in ``folder``, which is returned, and those that answer to the sonames.

    Raises:
        MachineUnfitError: one cannot be loaded, or another library of its name is in the process.
    """
    for soname in SONAMES:
        if _is_in_process(soname):
            raise MachineUnfitError(
                f"another {soname} is in the process already", where=_WHERE, remedy="load the card first"
            )
    try:
        card = ctypes.CDLL(str(folder / CARD), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
        for soname in sonames:
            ctypes.CDLL(str(folder / file_of(soname)), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:
        raise MachineUnfitError(f"cannot be loaded ({error})", where=_WHERE, remedy=_rebuild()) from error
    return card


def _is_in_process(soname: str) -> bool:
    try:
        ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


def _torch_with_cuda() -> InstalledTorch:
    torch = required_torch()
    if torch.cuda is None:
        raise MachineUnfitError(
            f"torch {torch.version} is built without CUDA",
            where=str(torch.folder),
            remedy="install PyTorch's CUDA build (pip install torch, from PyPI, on Linux); no GPU is needed",
        )
    return torch


def _check_requirements(torch: InstalledTorch) -> None:
    try:
        exported = read_elf(LIBRARIES / CARD, exports=True).exported
        unmet = requirements_of(torch).unmet(SONAMES, exported)
    except (OSError, ValueError) as error:
        raise MachineUnfitError(f"cannot be compared with torch ({error})", where=_WHERE, remedy=_rebuild()) from error
    if unmet:
        named = ", ".join(unmet[:_NAMED_AT_MOST])
        rest = f" and {len(unmet) - _NAMED_AT_MOST} more" if len(unmet) > _NAMED_AT_MOST else ""
        raise MachineUnfitError(
            f"torch {torch.version} (CUDA {torch.cuda}) needs {named}{rest}, which the virtual card lacks",
            where=str(torch.folder),
            remedy=f"install a torch from {text_of(OLDEST)} to {text_of(NEWEST)}",
        )


def _rebuild() -> str:
    """Return how to get the libraries: a checkout compiles them; otherwise the wheel has them."""
    if (LIBRARIES.parent / "csrc").is_dir():
        return f"compile it: {sys.executable} -m oomscope.virtual.build"
    return "reinstall oomscope's wheel for Linux (glibc, x86-64 or aarch64)"
