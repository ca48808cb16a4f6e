"""What a warm parent imports before the first job comes, and which checkouts would notice.

A module that was imported beforehand hides one of the same name in a checkout, and a variable that the checkout sets
comes too late for a library that reads it while being imported. Both can be told; such a job is for a fresh process.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path

_READ_WHILE_IMPORTED = ("TORCH_", "TORCHDYNAMO_", "PYTORCH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMBA_")
"""How the names of variables begin that torch, numpy, numba and their libraries read once, while being imported."""
_PRELOADED = (
    "numpy.ma",
    "torch._dynamo",  # torch's first optimizer imports all of it
    "oomscope.config.schema",
    "oomscope.model.parallel.parallel_state",
    "oomscope.model.trainer",
    "oomscope.probe.analysis.analyse",
    "oomscope.probe.machine.rates",
    "oomscope.probe.recording.cards",
    "oomscope.probe.recording.session",
)


def preload() -> None:
    """Import what every probe on a virtual card imports sooner or later.

    Nothing is run that would leave a trace in a probe: no tensor is made, no device registered, and CUDA not called,
    after which no fork could choose its card or use one; the environment stays as it was.
    """
    environment = dict(os.environ)
    for name in _PRELOADED:
        importlib.import_module(name)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]


def top_level_names() -> set[str]:
    """Return the modules that are imported, without those inside packages."""
    return {name for name in sys.modules if "." not in name}


def hides_some_of(names: Iterable[str], checkout: Path) -> bool:
    """Whether ``checkout``, or its ``src/``, has a module or package of its own by one of ``names``.

    A folder without ``__init__`` is none: an installed package of its name comes before it anyway.
    """
    places = [place for place in (checkout, checkout / "src") if place.is_dir()]
    finders = [_finder(place) for place in places]
    return any(_finds(finder, name) for finder in finders for name in names)


def sets_too_late(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether variables that libraries read while being imported differ between two environments."""
    return _early(before) != _early(now)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_WHILE_IMPORTED)}


def _finder(place: Path) -> FileFinder:
    return FileFinder(
        str(place),
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (SourceFileLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )


def _finds(finder: FileFinder, name: str) -> bool:
    spec = finder.find_spec(name)
    return spec is not None and spec.loader is not None
