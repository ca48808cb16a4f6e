"""Who records in this process. There is one history, so there is one recorder; a second one steps aside."""

from __future__ import annotations

import os
from typing import Final

PROBE_MARK: Final = "OOMSCOPE_PROBE"
"""Set in the environment of every process that a probe started."""

_owner: list[object] = []


def present_owner() -> str | None:
    """Return who records already, for people; None where nobody does."""
    if os.environ.get(PROBE_MARK):
        return "oomscope probe"
    return "another oomscope.record" if _owner else None


def take(owner: object) -> None:
    """Be the recorder of this process."""
    _owner.append(owner)


def release(owner: object) -> None:
    """Be it no more; nothing happens to one who is not."""
    if owner in _owner:
        _owner.remove(owner)
