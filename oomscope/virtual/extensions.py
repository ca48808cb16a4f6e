"""Libraries of the program that the virtual card cannot stand in for: those that call what it lacks, and those that
have NVIDIA's runtime inside.

The first fail when they are loaded. The second (``nvcc`` links the runtime statically unless it is told otherwise) find
the driver by themselves, and ask it for tables that only NVIDIA's own driver has; the card notes who asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from oomscope.virtual.elf import read_elf
from oomscope.virtual.installed_torch import is_nvidia
from oomscope.virtual.loading import LIBRARIES
from oomscope.virtual.sonames import CARD

_UNDEFINED = re.compile(r"(?P<path>/\S+): undefined symbol: (?P<name>\w+)")  # dlerror of glibc
_TABLES_OF = "cuGetExportTable of "  # csrc/driver/entry_points.cpp
_NAMED_AT_MOST = 3
_NOT_SUPPORTED = "CUDA error: operation not supported"
_IPC = re.compile(r"(?:cuda|cu)Ipc")
NO_IPC: Final = (
    "sharing tensors of the card between processes (CUDA IPC) is not supported on the virtual card; use --backend cuda"
)


def unmet_by(text: str) -> str | None:
    """Return in one line which library calls what the card lacks, where ``text`` is the dynamic loader's error.

    None where it is another error, or the missing function is none of NVIDIA's.
    """
    found = _UNDEFINED.search(text)
    if found is None:
        return None
    try:
        wanted = {symbol.name for symbol in read_elf(Path(found["path"])).wanted if is_nvidia(symbol)}
        exported = read_elf(LIBRARIES / CARD, exports=True).exported
    except (OSError, ValueError):
        return None
    unmet = sorted(wanted.difference(exported), key=lambda name: (name != found["name"], name))
    if found["name"] not in unmet:
        return None
    named = ", ".join(unmet[:_NAMED_AT_MOST])
    rest = f" and {len(unmet) - _NAMED_AT_MOST} more" if len(unmet) > _NAMED_AT_MOST else ""
    return f"{found['path']} calls {named}{rest}, which the virtual card lacks; measure it with --backend cuda"


def unshared_by(text: str, unsupported: Iterable[str]) -> str | None:
    """Return :data:`NO_IPC` where ``text`` is the runtime's error, and the card refused to share memory; else None.

    Args:
        text: of an error.
        unsupported: the calls that the card did not support (:class:`~oomscope.virtual.CardState`).
    """
    return NO_IPC if _NOT_SUPPORTED in text and any(map(_IPC.match, unsupported)) else None


def own_runtimes(unsupported: Iterable[str]) -> Iterator[str]:
    """Yield a line for each library that has a runtime inside.

    Args:
        unsupported: the calls that the card did not support (:class:`~oomscope.virtual.CardState`).
    """
    for call in unsupported:
        if call.startswith(_TABLES_OF):
            yield (
                f"{call.removeprefix(_TABLES_OF)} has its own CUDA runtime, which the virtual card cannot replace; "
                "build it with nvcc --cudart=shared, or measure it with --backend cuda"
            )
