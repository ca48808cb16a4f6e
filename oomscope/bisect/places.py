"""Where a search keeps things between and during runs: one place for the names, never inside a repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """The directories of oomscope's bisect under ``root``."""

    root: Path

    @classmethod
    def default(cls, environment: Mapping[str, str] = os.environ) -> Places:
        """Return ``$XDG_CACHE_HOME/oomscope``, or ``~/.cache/oomscope`` (XDG Base Directory Specification)."""
        base = environment.get("XDG_CACHE_HOME", "")
        return cls((Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "oomscope")

    @property
    def results(self) -> Path:
        """Probe results."""
        return self.root / "results"

    @property
    def checkouts(self) -> Path:
        """Disposable clones of running searches, and locks that say which are."""
        return self.root / "checkouts"
