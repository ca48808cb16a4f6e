"""What besides the job can change a measurement: versions, the environment, and oomscope's own sources.

A cache of results is keyed by the job and this document, so that asking again after an upgrade measures again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import oomscope
from oomscope.probe.machine.environment import MEASURED_VARIABLES
from oomscope.torch_versions import DEFAULT_RULES

PACKAGES = ("torch", "numpy", "triton", "numba")
"""Distributions whose version can change what is allocated or how it is replayed."""

_BYTECODE = "__pycache__"
_NONE = "none"


def fingerprint(environment: Mapping[str, str]) -> dict[str, str]:
    """Return names and values of everything but the job that can change a measurement here.

    Keys are ``python``, the names in :data:`PACKAGES` (``none`` where not installed), ``oomscope`` with its
    version, ``sources`` with the hash of its files, and ``env.NAME`` for each measured variable that is set in
    ``environment``. GPU and driver are not in it: on cuda a result names them itself, and a caller that caches adds
    them.
    """
    variables = {f"env.{name}": environment[name] for name in MEASURED_VARIABLES if name in environment}
    return versions() | {"sources": sources_hash()} | variables


def versions() -> dict[str, str]:
    """Return the versions of Python, oomscope and :data:`PACKAGES`; ``none`` where one is not installed."""
    packages = {name: version_of(name) or _NONE for name in PACKAGES}
    return {"python": platform.python_version(), "oomscope": oomscope.__version__, **packages}


def installed_torch() -> str:
    """Return the installed torch's version, such as ``2.13``; without one, that whose rules the allocator assumes."""
    version = version_of("torch")
    return DEFAULT_RULES if version is None else ".".join(version.split(".")[:2])


@cache
def sources_hash() -> str:
    """Return :func:`hash_of` the package."""
    return hash_of(Path(oomscope.__file__).resolve().parent)


def hash_of(root: Path) -> str:
    """Return :func:`hash_of_files` of all files under ``root`` but bytecode."""
    return hash_of_files(root, (path for path in root.rglob("*") if _BYTECODE not in path.parts and path.is_file()))


def hash_of_files(root: Path, paths: Iterable[Path]) -> str:
    """Return the SHA-256, in hex, of the names below ``root`` and bytes of ``paths``, without what cannot be read."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # a dangling link: nothing can import it
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


@cache
def version_of(name: str) -> str | None:
    """Return the version that is installed of a distribution, None where there is none.

    It is read once: that takes a millisecond, and probes ask for four each.
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
