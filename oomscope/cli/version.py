"""``--version``: what is installed, and which backend ``auto`` would take, told without importing torch."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import oomscope

SCHEMA_VERSION = 1


def version_document() -> dict[str, Any]:
    """Return the versions of oomscope, Python and torch, and the backends at hand."""
    torch = _torch_version()
    return {
        "schema_version": SCHEMA_VERSION,
        "oomscope": oomscope.__version__,
        "python": platform.python_version(),
        "torch": torch,
        "backends": available_backends(torch),
    }


def version_line(document: dict[str, Any]) -> str:
    """Return the same for people."""
    torch = f"torch {document['torch']}" if document["torch"] else "torch not installed"
    backends = ", ".join(document["backends"]) or "none"
    return f"oomscope {document['oomscope']} (Python {document['python']}, {torch}, backends: {backends})"


def available_backends(torch: str | None, devices: Path = Path("/dev")) -> list[str]:
    """Return the backends that a probe could use here, the one that ``auto`` takes first.

    A CUDA build of torch and the driver's device file are what ``cuda`` needs; whether the card works is known only
    once a probe starts.
    """
    if torch is None:
        return []
    has_cuda = "+cpu" not in torch and (devices / "nvidiactl").exists()
    from oomscope.probe.machine.backends import has_virtual_card

    return [*(["cuda"] if has_cuda else []), *(["virtual"] if has_virtual_card() else [])]


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
