"""Importing from a checkout: it comes first on ``sys.path``, and is forgotten when the next one comes.

Nothing of oomscope is ever taken from there, nor forgotten: what drives a commit is the oomscope that was started.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable
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
    root, files = root.resolve(), {file.resolve() for file in files}
    installed = _installed_places()
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        path = Path(origin).resolve() if origin else None
        if path is None or any(path.is_relative_to(place) for place in installed):
            continue
        if path in files or path.is_relative_to(root):
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


def _installed_places() -> set[Path]:
    """Return where Python's library, installed packages and oomscope itself lie."""
    paths = sysconfig.get_paths()
    places = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return places | {Path(oomscope.__file__).resolve().parent}
