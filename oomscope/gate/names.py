"""What the files of a gate are called, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path

_BASELINE = ".baseline.yaml"


def baseline_beside(suite: Path) -> Path:
    """Return where the baseline of ``suite`` lies."""
    return suite.with_name(suite.stem + _BASELINE)
