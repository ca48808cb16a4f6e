"""All that lies between two states of something: the good one with any choice of its changes made.

What the changes are (configuration keys, environment variables, packages, hunks of a commit) is for each
:class:`Mixture` to know; the search over them (:mod:`oomscope.bisect.delta_search`) only numbers them.
"""

from __future__ import annotations

from typing import Protocol

from oomscope.bisect.deltas import Changes
from oomscope.bisect.experiment import Experiment, Untestable
from oomscope.bisect.measured import Bytes
from oomscope.bisect.result import KeyChange


class Mixture(Protocol):
    """Two states, and every state between them."""

    @property
    def good(self) -> str:
        """What people call the state with no change made."""
        ...

    @property
    def bad(self) -> str:
        """What people call the state with all changes made."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the changes, by number."""
        ...

    def units(self) -> list[Changes]:
        """Return the changes in groups that make sense only together, prerequisites first."""
        ...

    def is_valid(self, changes: Changes) -> bool:
        """Whether the state with ``changes`` made can be tested at all, as far as that is known without a probe."""
        ...

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the change ``key`` with both its values."""
        ...

    def experiment(self, changes: Changes) -> Experiment | Untestable:
        """Return how the state with ``changes`` made is measured, or why it cannot be."""
        ...

    def commands(self, changes: Changes) -> tuple[str, ...]:
        """Return shell commands that repeat the probe of ``changes``."""
        ...


def everything(mixture: Mixture) -> Changes:
    """Return all changes: the bad state."""
    return frozenset(range(len(mixture.keys)))


def names(mixture: Mixture, changes: Changes) -> tuple[str, ...]:
    """Return what ``changes`` are called, in the order of their numbers."""
    return tuple(mixture.keys[change] for change in sorted(changes))


def title(mixture: Mixture, changes: Changes) -> str:
    """Return what people call the state with ``changes`` made."""
    return f"{mixture.good} with {listed(names(mixture, changes))}" if changes else mixture.good


def listed(keys: tuple[str, ...], shown: int = 3) -> str:
    """Return a few changes by name, and of more how many."""
    if len(keys) <= shown:
        return ", ".join(keys)
    return f"{', '.join(keys[: shown - 1])} and {len(keys) - shown + 1} more keys"
