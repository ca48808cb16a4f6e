"""Loads a harness file and lets it build its target from the checkout.

The checkout (and its ``src/``) comes first on ``sys.path``; the harness itself is loaded from wherever it lies,
under a name that no import statement can produce, so that it never shadows a module of the checkout.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from oomscope.errors import InputError, TargetError
from oomscope.probe.job import HarnessTarget
from oomscope.probe.target import Context, Target

Setup = Callable[[Context], object]
"""What a harness defines; what it returns is checked by :func:`build_target`."""

_MODULE = "<oomscope harness>"


class HarnessError(TargetError):
    """The harness is not what a harness must be: no ``setup``, or one that returns something else."""


def load_setup(target: HarnessTarget) -> Setup:
    """Return the ``setup`` function of the harness file, with the checkout made importable.

    Whatever the harness or the checkout raises while being imported passes through.

    Raises:
        InputError: there is no such file or no such checkout.
        HarnessError: the file defines no callable ``setup``.
    """
    path, repo = Path(target.harness), Path(target.repo)
    if not path.is_file():
        raise InputError("no such harness file", where=str(path), remedy="give --harness the path of a Python file")
    if not repo.is_dir():
        raise InputError("no such checkout", where=str(repo), remedy="give --repo the directory of the checkout")
    _make_importable(repo)
    setup = getattr(_load(path), "setup", None)
    if not callable(setup):
        raise HarnessError(
            "the harness defines no function setup",
            where=str(path),
            remedy="define setup(ctx: oomscope.Context) -> oomscope.Target",
        )
    return cast("Setup", setup)


def build_target(setup: Setup, context: Context, *, where: str) -> Target:
    """Call ``setup`` and check what it returns; a bare callable counts as ``Target(step)``.

    Raises:
        HarnessError: it returned no target, or one whose step cannot be called.
    """
    returned = setup(context)
    target = Target(returned) if callable(returned) else returned
    if not isinstance(target, Target) or not callable(target.step):
        raise HarnessError(
            f"setup returned {_kind(target)}, not a target",
            where=where,
            remedy="return oomscope.Target(step, model=..., optimizer=...) where step() runs one iteration",
        )
    return target


def forget_checkout(repo: str) -> None:
    """Drop every module that was imported from ``repo``, and the harness, so that the next load starts afresh."""
    root = Path(repo).resolve()
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name == _MODULE or (origin and Path(origin).resolve().is_relative_to(root)):
            del sys.modules[name]


def _make_importable(repo: Path) -> None:
    paths = [str(path) for path in (repo, repo / "src") if path.is_dir()]
    sys.path[:] = paths + [entry for entry in sys.path if entry not in paths]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file", where=str(path), remedy="give --harness a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_MODULE]
        raise
    return module


def _kind(value: object) -> str:
    return "nothing" if value is None else f"an object of type {type(value).__name__}"
