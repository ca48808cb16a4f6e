"""What the installed PyTorch requires of NVIDIA's libraries, found without importing it.

A CUDA build of torch cannot be imported before the requirements of its libraries are met, so its files are read.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from oomscope.errors import MachineUnfitError
from oomscope.virtual.elf import Symbol, read_elf

_NVIDIA_LIBRARY = re.compile(r"lib(cuda|cudart|cublas|cudnn|cudss|cufft|cufile|cupti|curand|cusolver|cusparse|nccl|nv)")
_NVIDIA_NAME = re.compile(r"(cu|cuda|nccl|nvml|nvrtc|nvtx|nvJitLink|nvshmem|cusparseLt|cuFile|cudss)[A-Za-z_]\w*")
_VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)
_CUDA = re.compile(r"^cuda: [^=]*= '([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class InstalledTorch:
    """The torch that ``import torch`` would take."""

    folder: Path
    version: str
    """Version of torch; ``?`` where its version file says none."""
    cuda: str | None
    """The CUDA version that it is built for; None for a build without."""


def find_torch() -> InstalledTorch | None:
    """Return the torch on the path; None where there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    try:
        stated = (folder / "version.py").read_text()
    except OSError:
        stated = ""
    version, cuda = _VERSION.search(stated), _CUDA.search(stated)
    return InstalledTorch(folder, version[1] if version else "?", cuda[1] if cuda else None)


def required_torch() -> InstalledTorch:
    """Return the torch on the path.

    Raises:
        MachineUnfitError: there is none.
    """
    torch = find_torch()
    if torch is None:
        raise MachineUnfitError("torch is not installed", remedy="pip install 'oomscope[probe]'")
    return torch


@dataclass(frozen=True)
class Requirements:
    """What torch's libraries require of NVIDIA's."""

    sonames: frozenset[str]
    symbols: frozenset[str]

    def unmet(self, sonames: Collection[str], exported: Collection[str]) -> tuple[str, ...]:
        """Return, in order, the sonames and the symbols that are not among those given."""
        return (*sorted(self.sonames.difference(sonames)), *sorted(self.symbols.difference(exported)))


def requirements_of(torch: InstalledTorch) -> Requirements:
    """Return what the libraries of ``torch`` require.

    Raises:
        OSError, ValueError: one of them cannot be read.
    """
    sonames: set[str] = set()
    symbols: set[str] = set()
    for path in [*torch.folder.glob("lib/*.so*"), *torch.folder.glob("_C*.so")]:
        elf = read_elf(path)
        brought = {own.name for own in path.parent.iterdir()}  # torch 2.4 has a cuSPARSELt of its own name
        sonames.update(name for name in elf.needed if _NVIDIA_LIBRARY.match(name) and name not in brought)
        symbols.update(symbol.name for symbol in elf.wanted if is_nvidia(symbol))
    return Requirements(frozenset(sonames), frozenset(symbols))


def missing_libraries(torch: InstalledTorch) -> tuple[str, ...]:
    """Return the sonames of NVIDIA's that ``torch`` cannot be imported without and that are not installed.

    Looked for where the dynamic loader and ``import torch`` do: the library's own search path, ``LD_LIBRARY_PATH``, the
    folders ``nvidia/*/lib`` on Python's path, and the system's. Nothing is loaded.

    Raises:
        OSError, ValueError: torch's library cannot be read.
    """
    library = torch.folder / "lib" / "libtorch_cuda.so"
    elf = read_elf(library)
    wanted = {name for name in elf.needed if _NVIDIA_LIBRARY.match(name)}
    folders = [Path(folder.replace("$ORIGIN", str(library.parent))) for folder in elf.search_path]
    folders += [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += [folder for entry in sys.path for folder in Path(entry).glob("nvidia/*/lib")]
    missing = [name for name in wanted if not any((folder / name).exists() for folder in folders)]
    known = _known_to_the_system() if missing else frozenset()
    return tuple(sorted(name for name in missing if name not in known))


def _known_to_the_system() -> frozenset[str]:
    """Return the sonames in the dynamic loader's cache."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/sbin", "/usr/sbin"])
    program = shutil.which("ldconfig", path=path)
    if program is None:
        return frozenset()
    done = subprocess.run([program, "-p"], capture_output=True, text=True, errors="replace", check=False)
    return frozenset(line.split()[0] for line in done.stdout.splitlines() if "=>" in line)


def is_nvidia(symbol: Symbol) -> bool:
    """Whether NVIDIA's libraries must have it: by its version's library, or by its name where it has no version."""
    if symbol.is_weak:
        return False
    if symbol.library:
        return bool(_NVIDIA_LIBRARY.match(symbol.library))
    return bool(_NVIDIA_NAME.fullmatch(symbol.name)) and not symbol.name.endswith("_")  # LAPACK's: cungqr_
