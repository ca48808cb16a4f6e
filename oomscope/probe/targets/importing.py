"""Importing from a checkout: it comes first on ``sys.path``, and is forgotten when the next one comes.

Nothing of oomscope is ever taken from there, nor forgotten: what drives a commit is the oomscope that was started.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import oomscope


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
    """Whether ``function`` can be called with one argument; True if that is not known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell: the call will
        return True
    return True
