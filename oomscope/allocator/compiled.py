"""The engine as machine code: lowered to LLVM's instructions, optimised as one piece, and kept on disk.

Nothing here is imported by the online allocator. The machine code lies in a directory named after a digest of all
sources and of everything else that decides what it is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import tempfile
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import cast

from oomscope.allocator import (
    blocks,
    constants,
    driver,
    engine,
    eventlog,
    expandable,
    memory,
    reclaim,
    sortedset,
    stats,
    streams,
)

HOT_MODULES = (constants, memory, sortedset, stats, driver, eventlog, blocks, expandable, streams, reclaim, engine)
"""What the engine is made of."""
CHECKSUM = hashlib.sha256


def cache_file() -> Path:
    """Return where the machine code is kept that exactly these sources give, for this processor."""
    from oomscope.allocator.lowering.machine import target

    made_by = importlib.metadata.version("llvmlite"), platform.python_version()
    digest = hashlib.sha256(repr((made_by, target())).encode())
    hot = [Path(str(module.__file__)) for module in HOT_MODULES]
    for source in (*hot, *sorted(Path(__file__).with_name("lowering").glob("*.py"))):
        digest.update(source.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "oomscope" / "engine" / digest.hexdigest()[:16] / "run.o"


def is_compiled() -> bool:
    """Say whether the compiled engine lies on disk."""
    return cache_file().exists()


@cache
def compiled_run() -> engine.Run:
    """Return ``engine.run`` for arrays of int64, compiled unless it lies on disk.

    Where the cache directory cannot be written, it is compiled once in each process.
    """
    from oomscope.allocator.lowering.machine import loaded, machine_code

    entry = cast("FunctionType", engine.run)
    file = cache_file()
    code = _read(file)
    if code is None:
        code = machine_code(entry)
        _write(file, code)
    return loaded(code, entry)


def _read(file: Path) -> bytes | None:
    """Return the machine code on disk, or None where there is none or it is damaged."""
    try:
        kept = file.read_bytes()
    except OSError:
        return None
    size = CHECKSUM().digest_size
    return kept[size:] if CHECKSUM(kept[size:]).digest() == kept[:size] else None


def _write(file: Path, code: bytes) -> None:
    """Keep the machine code behind its checksum, whole or not at all, where that may be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=file.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(CHECKSUM(code).digest() + code)
        Path(new).replace(file)
    except OSError:
        Path(new).unlink(missing_ok=True)
