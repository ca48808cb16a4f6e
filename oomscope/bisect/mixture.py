"""The configurations between two configurations: the good one with any choice of its keys as in the bad one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oomscope.bisect.deltas import Changes
from oomscope.bisect.experiment import Untestable
from oomscope.bisect.measured import Bytes
from oomscope.bisect.result import KeyChange
from oomscope.errors import ConfigError

if TYPE_CHECKING:
    from oomscope.config.schema import Config


class Mixture:
    """The good configuration with some of its keys as in the bad one."""

    def __init__(self, good: Config, bad: Config) -> None:
        self._good = good.flat()
        self._bad = bad.flat()
        self.keys = tuple(key for key in self._good if self._good[key] != self._bad[key])
        self._loaded: dict[Changes, Config | Untestable] = {}

    @property
    def all(self) -> Changes:
        """Every key changed: the bad configuration."""
        return frozenset(range(len(self.keys)))

    def names(self, changes: Changes) -> tuple[str, ...]:
        """Return the keys that ``changes`` stand for, in the order of the schema."""
        return tuple(self.keys[change] for change in sorted(changes))

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return ``key`` with both its values."""
        return KeyChange(key=key, good=self._good[key], bad=self._bad[key], delta=delta)

    def config(self, changes: Changes) -> Config | Untestable:
        """Return the configuration with ``changes`` made, or the rule that it breaks."""
        if changes not in self._loaded:
            self._loaded[changes] = self._load(changes)
        return self._loaded[changes]

    def is_valid(self, changes: Changes) -> bool:
        """Whether the configuration with ``changes`` made breaks no rule."""
        return not isinstance(self.config(changes), Untestable)

    def overrides(self, changes: Changes) -> tuple[str, ...]:
        """Return ``changes`` as overrides of the good file."""
        return tuple(f"{key}={_as_override(self._bad[key])}" for key in self.names(changes))

    def _load(self, changes: Changes) -> Config | Untestable:
        from oomscope.config.load import config_from_mapping

        changed = set(self.names(changes))
        sections: dict[str, dict[str, Any]] = {}
        for dotted, value in self._good.items():
            section, _, key = dotted.partition(".")
            sections.setdefault(section, {})[key] = self._bad[dotted] if dotted in changed else value
        try:
            return config_from_mapping(sections, source="the mixture").config
        except ConfigError as error:
            return Untestable(str(error))


def _as_override(value: Any) -> str:
    """Return ``value`` as ``section.key=value`` has it; the empty text is null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
