"""The recorder of this process. There is one history, so there is one recorder; a second one does not start."""

from __future__ import annotations

import os
from typing import Final

PROBE_MARK: Final = "OOMSCOPE_PROBE"
"""Variable that a probe sets in every process that it starts."""
PYTHON: Final = "OOMSCOPE_RECORD_PYTHON"
"""Names the interpreter that ``oomscope record`` runs under."""

_owner: list[object] = []


def present_owner() -> str | None:
    """Return a description of the active recorder, or None."""
    if os.environ.get(PROBE_MARK):
        return "oomscope probe"
    return "another oomscope.record" if _owner else None


def take(owner: object) -> None:
    """Make ``owner`` the recorder of this process."""
    _owner.append(owner)


def release(owner: object) -> None:
    """Let another one record; no-op where ``owner`` is not the recorder."""
    if owner in _owner:
        _owner.remove(owner)
