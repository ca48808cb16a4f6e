"""Several changes at once: which of them are still in effect, what they set together, and what the sum is called.

A change that sets a key to something else than one before it takes that one's place: a name in a sum is a change that
the configuration really has.
"""

from __future__ import annotations

from collections.abc import Sequence

from oomscope.probe.tuning.remedies import Remedy


def laid_upon(chosen: Sequence[Remedy], change: Remedy) -> tuple[Remedy, ...]:
    """Return ``chosen`` and ``change``, less those of ``chosen`` of which ``change`` undoes a key."""
    values = _values(change.overrides)
    kept = [other for other in chosen if _agree(_values(other.overrides), values)]
    return (*kept, change)


def overrides_together(changes: Sequence[Remedy]) -> tuple[str, ...]:
    """Return what ``changes`` set, each key once."""
    return tuple(dict.fromkeys(override for change in changes for override in change.overrides))


def title(changes: Sequence[Remedy]) -> str:
    """Return ``changes`` in words."""
    return " + ".join(change.name for change in changes)


def _values(overrides: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (override.partition("=") for override in overrides)}


def _agree(one: dict[str, str], other: dict[str, str]) -> bool:
    return all(other.get(key, value) == value for key, value in one.items())
