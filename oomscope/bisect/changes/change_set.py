"""A change set: two states, good and bad, and every state with some of its changes made.

The changes are configuration keys, environment variables, packages or hunks. Each :class:`ChangeSet` knows its own; the
search (:mod:`oomscope.bisect.changes.delta_search`) only numbers them. Several sets are searched as one. The options of
``oomscope bisect`` make them (``change_sets`` in ``oomscope/cli/bisect/options.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from oomscope.bisect.results.result import KeyChange
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.measured import Untestable
from oomscope.bisect.targets.subjects import Subject
from oomscope.bisect.vcs.repository import Commit
from oomscope.units import Bytes

NOTHING_RUNS = Untestable("there is nothing to measure")


class ChangeSet(ABC):
    """Two states, and every state between them."""

    @property
    @abstractmethod
    def ends(self) -> tuple[str, str]:
        """Names for people of the state with no change made, and of that with all of them."""

    @property
    def good(self) -> str:
        """The name of the state with no change made."""
        return self.ends[0]

    @property
    def bad(self) -> str:
        """The name of the state with all changes made."""
        return self.ends[1]

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The names of the changes, by number."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a report has to say of the changes; by default nothing."""
        return ()

    def units(self) -> list[Changes]:
        """Return the changes in groups that make sense only together, prerequisites first; by default each alone."""
        return [frozenset({change}) for change in range(len(self.keys))]

    def is_valid(self, _changes: Changes) -> bool:
        """Whether the state with ``changes`` made can be tested at all, if that is known without a probe."""
        return True

    @abstractmethod
    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the change ``key`` with both its values."""

    @abstractmethod
    def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return how the state with ``changes`` made is measured, or why it cannot be.

        Args:
            changes: those made.
            on: for changes of the environment of a run: the run.
        """

    @abstractmethod
    def commands(self, changes: Changes, on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return shell commands that repeat the probe of ``changes``; for changes of an environment ``on`` runs it."""


def everything(change_set: ChangeSet) -> Changes:
    """Return all changes: the bad state."""
    return frozenset(range(len(change_set.keys)))


def names(change_set: ChangeSet, changes: Changes) -> tuple[str, ...]:
    """Return the names of ``changes``, in the order of their numbers."""
    return tuple(change_set.keys[change] for change in sorted(changes))


def title(change_set: ChangeSet, changes: Changes) -> str:
    """Return the name for people of the state with ``changes`` made."""
    return f"{change_set.good} with {listed(names(change_set, changes))}" if changes else change_set.good


def listed(keys: tuple[str, ...], shown: int = 3) -> str:
    """Return a few changes by name, and of more how many."""
    if len(keys) <= shown:
        return ", ".join(keys)
    return f"{', '.join(keys[: shown - 1])} and {len(keys) - shown + 1} more keys"


@dataclass(frozen=True)
class OneCommit(ChangeSet):
    """One commit to be measured: a change set without changes."""

    subject: Subject
    commit: Commit
    keys: tuple[str, ...] = field(default=(), init=False)

    @property
    def ends(self) -> tuple[str, str]:
        """The commit."""
        return self.commit.title, self.commit.title

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Raise: there is none."""
        raise KeyError(key)

    def experiment(self, _changes: Changes, _on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return how the commit is measured."""
        return self.subject.experiment(self.commit)

    def commands(self, _changes: Changes, _on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return commands that repeat the probe of the commit."""
        return self.subject.commands(self.commit)


@dataclass(frozen=True)
class CombinedChanges(ChangeSet):
    """The changes of all ``parts``, numbered in this order: what is measured, then its environment."""

    parts: Sequence[ChangeSet]

    @property
    def ends(self) -> tuple[str, str]:
        """The names of those of all parts."""
        return " under ".join(part.good for part in self.parts), " under ".join(part.bad for part in self.parts)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of all changes."""
        return tuple(key for part in self.parts for key in part.keys)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks of all parts."""
        return tuple(remark for part in self.parts for remark in part.remarks)

    def units(self) -> list[Changes]:
        """Return the units of all parts: none needs what another part changes."""
        return [
            frozenset(change + begin for change in unit)
            for begin, part in zip(self._begins, self.parts, strict=True)
            for unit in part.units()
        ]

    def is_valid(self, changes: Changes) -> bool:
        """Whether every part can be tested."""
        return all(part.is_valid(own) for part, own in self._split(changes))

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the change ``key`` of the part that has it."""
        return next(part for part in self.parts if key in part.keys).change(key, delta)

    def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return the experiment of the first part in the environment of the others."""
        for part, own in self._split(changes):
            found = part.experiment(own, on)
            if isinstance(found, Untestable):
                return found
            on = found
        return on or NOTHING_RUNS

    def commands(self, changes: Changes, on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return the commands of the first part, the last of them (the probe) in the environment of the others."""
        for part, own in self._split(changes):
            on = part.commands(own, on)
        return on

    @property
    def _begins(self) -> list[int]:
        return list(accumulate((len(part.keys) for part in self.parts), initial=0))[:-1]

    def _split(self, changes: Changes) -> list[tuple[ChangeSet, Changes]]:
        """Return each part with its own of ``changes``, in its own numbers."""
        return [
            (part, frozenset(change - begin for change in changes if begin <= change < begin + len(part.keys)))
            for begin, part in zip(self._begins, self.parts, strict=True)
        ]
