"""What is installed, as one hash: names and versions, and of editable packages the code itself.

An editable package keeps its version while its files change, and a harness may import any of them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

CODE: Final = frozenset({".py", ".so", ".pyd", ".dylib"})
"""Suffixes of the files that a program imports."""
OWN: Final = "oomscope"
"""Not asked for here: the key of a result holds the hash of its sources anyway."""


@cache
def installed_packages() -> str:
    """Return the SHA-256, in hex, of names and versions of all installed distributions, and of editable code."""
    return hash_of(importlib.metadata.distributions())


def hash_of(distributions: Iterable[importlib.metadata.Distribution]) -> str:
    """Return the SHA-256, in hex, of ``distributions``, in any order."""
    rows = set()
    for item in distributions:
        name = (item.name or "").lower()
        root = None if name == OWN else editable_root(item)
        rows.add(f"{name}=={item.version}" if root is None else f"{name}=={item.version} {_hash_of_code(root)}")
    return hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest()


def editable_root(distribution: importlib.metadata.Distribution) -> Path | None:
    """Return the folder that an editable distribution was installed from; None of any other (PEP 610)."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        is_editable = origin.get("dir_info", {}).get("editable", False)
        return Path(url2pathname(urlsplit(origin["url"]).path)) if is_editable else None
    except (ValueError, KeyError, AttributeError):  # written by another tool, or by hand
        return None


def _hash_of_code(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(_code_in(root)):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # a dangling link: nothing can import it
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _code_in(root: Path) -> Iterator[Path]:
    """Yield the code under ``root``; hidden folders and virtual environments hold none of the package's own."""
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not (name.startswith(".") or _is_environment(Path(folder, name)))]
        yield from (Path(folder, name) for name in files if Path(name).suffix in CODE)


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists()
