"""Importing from a checkout: it comes first on ``sys.path``, and is forgotten when the next one comes.

Nothing of oomscope is ever taken from there, nor forgotten: what drives a commit is the oomscope that was started.
Python's collector of cycles rests during imports: torch makes a third of a million objects, nearly all of which stay,
and to look through them again and again takes a fifth of the import's time.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import oomscope

_MANY: Final = 100_000
"""Objects after which Python itself would have looked through all of them."""


def make_importable(repo: Path, beside: Path | None = None) -> None:
    """Put the checkout, then its ``src/``, first on ``sys.path``, and the folder ``beside`` last."""
    first = [str(path) for path in (repo, repo / "src") if path.is_dir()]
    last = [str(beside)] if beside is not None and str(beside) not in first else []
    rest = [entry for entry in sys.path if entry not in first and entry not in last]
    sys.path[:] = first + rest + last
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()


def forget_modules(root: Path, files: Iterable[Path] = ()) -> None:
    """Drop the modules that were imported from below ``root`` and from ``files``, so that the next import reads anew.

    What is installed stays, also where the environment lies inside the checkout: no library stands being imported
    twice.
    """
    paths = sysconfig.get_paths()
    installed = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    kept = tuple(f"{place}/" for place in (*installed, Path(oomscope.__file__).resolve().parent))
    below, chosen = f"{root.resolve()}/", {str(file.resolve()) for file in files}
    real = cache(os.path.realpath)  # torch alone has two thousand modules in some hundred directories
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if origin:
            directory, file = os.path.split(origin)
            path = os.path.realpath(origin) if os.path.islink(origin) else f"{real(directory)}/{file}"  # noqa: PTH114
            if (path in chosen or path.startswith(below)) and not path.startswith(kept):
                del sys.modules[name]


def takes_one_argument(function: Callable[..., object]) -> bool:
    """Whether ``function`` can be called with one argument, as far as it tells."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell: the call will
        return True
    return True


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage unasked inside the block; what is imported may set the collector as it likes, which lasts.

    Training that collects by hand (``gc.disable()``) or seldom (``gc.set_threshold(...)``) holds more memory for it.
    After many objects the collector runs once: it counts them as old then, as it would without this block, and looks
    through all of them again when a quarter as many are new.
    """
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])  # which Python takes for never, and isenabled() does not tell
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)
            if gc.get_count()[0] > _MANY:
                gc.collect()
