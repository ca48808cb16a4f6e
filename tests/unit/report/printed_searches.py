"""Searches of which requested bytes alone are known, for the tests of every report."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from oomscope.bisect.search.measured import Bytes
from oomscope.probe.result import Peak


def printed(value: Any) -> Any:
    """Return ``value`` without the reserved bytes anywhere in it, as of a command that prints its live ones."""
    if isinstance(value, tuple):
        return tuple(map(printed, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {each.name: printed(getattr(value, each.name)) for each in fields(value) if each.init}
    if isinstance(value, Bytes | Peak):
        changed["reserved_bytes"] = None
    return replace(value, **changed)
