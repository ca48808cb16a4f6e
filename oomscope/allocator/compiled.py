"""The engine compiled by numba: the same functions, bound to each other anew, cached on disk under their digest.

Nothing here is imported for a short trace. Every plain function of the hot modules is copied with globals in which the
others are already compiled; the machine code is cached in a directory named after a digest of all their sources, since
numba itself would notice a change only in the file of the function that is called. numba unpickles what it finds there,
so a cache is used only where nobody but this user can have written it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import stat
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from oomscope.allocator.engine import blocks, constants, driver, expandable, memory, reclaim, serve, stats
from oomscope.files import user_folder

logger = logging.getLogger(__name__)

HOT_MODULES = (memory, driver, stats, blocks, expandable, reclaim, serve)
"""The compiled modules in the order of their imports: each calls only itself and those before it."""


def cache_directory() -> Path:
    """Return the directory of the engine compiled from these sources by this numba, Python and processor."""
    versions = importlib.metadata.version("numba"), platform.python_version(), platform.machine()
    digest = hashlib.sha256(repr(versions).encode())
    for module in (constants, *HOT_MODULES):
        digest.update(Path(str(module.__file__)).read_bytes())
    return user_folder("cache") / "engine" / digest.hexdigest()[:16]


def is_compiled() -> bool:
    """Return whether the compiled engine lies on disk and may be used."""
    directory = cache_directory()
    return any(directory.rglob("*.nbc")) and _objection(directory) is None


@cache
def compiled_run() -> serve.Run:
    """Return ``serve.run``, to be compiled at its first call unless it lies on disk; that is announced in the log.

    Where the cache directory cannot be written, or others can write to it, it is compiled once in each process.
    """
    import numba

    if not is_compiled():
        logger.warning("compiling the allocator's engine, once for this installation; this takes about 20 seconds")
    run = _compiled_functions(numba)[_name(serve.run)]
    directory = cache_directory()
    if _is_writable(directory) and _is_ours(directory):
        config: Any = numba.config
        elsewhere = config.CACHE_DIR
        config.CACHE_DIR = str(directory)
        try:
            run.enable_caching()
        finally:
            config.CACHE_DIR = elsewhere
    return run  # type: ignore[no-any-return]


def _compiled_functions(numba: Any) -> dict[str, Any]:
    """Return numba's dispatchers of all functions of the hot modules; nothing is compiled yet."""
    compiled: dict[str, Any] = {}
    for module in HOT_MODULES:
        namespace = {name: _typed(value) for name, value in vars(module).items()}
        for name, value in vars(module).items():
            if not isinstance(value, FunctionType):
                continue
            if _name(value) not in compiled:
                compiled[_name(value)] = _dispatcher(numba, value, namespace)
            namespace[name] = compiled[_name(value)]
    return compiled


def _typed(value: Any) -> Any:
    """Return a constant as numba is to see it: an int64 like any other.

    Of a Python integer it sees the value too, and compiles each function that is given one once for every value.
    """
    import numpy as np

    return np.int64(value) if type(value) is int else value


def _dispatcher(numba: Any, function: FunctionType, namespace: dict[str, Any]) -> Any:
    """Return a copy of ``function`` for numba, with ``namespace`` as its globals.

    The engine neither makes arrays nor keeps any, so that they need no reference counts. Only ``run`` is called from
    Python; the others need no wrappers, which take a quarter of the time to compile.
    """
    twin = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    twin.__module__ = function.__module__
    twin.__qualname__ = function.__qualname__
    inner = _name(function) != _name(serve.run)
    return numba.njit(error_model="numpy", _nrt=False, no_cpython_wrapper=inner, no_cfunc_wrapper=inner)(twin)


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _is_writable(directory: Path) -> bool:
    """Make the directory, closed to others, where it is not there; return whether files can be put into it."""
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def _is_ours(directory: Path) -> bool:
    """Return whether no other user can have written the cache; log a warning where one can."""
    objection = _objection(directory)
    if objection is not None:
        remedy = "remove that folder, or set XDG_CACHE_HOME to one of your own"
        logger.warning("the compiled engine in %s is not used: %s; %s", directory.parent, objection, remedy)
    return objection is None


def _objection(directory: Path) -> str | None:
    """Return why another user may have written into ``directory`` or its parent; None where none can have."""
    for path in (directory.parent, directory):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return f"{path} is a symbolic link"
            if status.st_uid != os.getuid():
                return f"{path} belongs to another user"
            if status.st_mode & 0o022:
                return f"others may write to {path}"
    return None
