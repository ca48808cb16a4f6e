"""The configurations between two configurations: the good one with any choice of its keys as in the bad one."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oomscope.allocator.alloc_conf import joined
from oomscope.bisect.changes.change_set import ChangeSet, names
from oomscope.bisect.changes.environment import differing_settings
from oomscope.bisect.results.result import KeyChange
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes, units_of
from oomscope.bisect.search.measured import Untestable
from oomscope.errors import ConfigError
from oomscope.probe.job import bundled_job
from oomscope.probe.machine.checks import check_card
from oomscope.probe.ranks import chosen_ranks
from oomscope.units import Bytes

if TYPE_CHECKING:
    from oomscope.config.schema import Config

_CONF = "allocator.conf"


@dataclass(frozen=True, kw_only=True)
class ConfigEnd:
    """One of two configurations."""

    name: str
    """Name shown to people: a file, or ``REV:path``."""
    config: Config
    file: str
    """The file that a command probes."""
    write: tuple[str, ...] = ()
    """Shell commands that write ``file`` where it is in a repository only."""


@dataclass(frozen=True)
class ConfigKeys(ChangeSet):
    """The mixtures of two configurations, as the bundled transformer runs them.

    Args:
        low: the good one.
        high: the bad one.
        dialect: whose names both files have, where not oomscope's own.
        overrides: ``section.key=value`` each, which both have on top of their files.
    """

    low: ConfigEnd
    high: ConfigEnd
    dialect: str | None = None
    overrides: tuple[str, ...] = ()
    _loaded: dict[Changes, Config | Untestable] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[str, str]:
        """The names of both configurations."""
        return self.low.name, self.high.name

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys whose values differ, in the order of the schema; of the allocator's settings each by itself."""
        good, bad = self._flat
        return tuple(key for key, value in good.items() if value != bad[key])

    def units(self) -> list[Changes]:
        """Return the keys that the rules make valid only together."""
        return units_of(len(self.keys), self.is_valid)

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return ``key`` with both its values."""
        good, bad = self._flat
        return KeyChange(key=key, good=good[key], bad=bad[key], delta=delta)

    def config(self, changes: Changes) -> Config | Untestable:
        """Return the configuration with ``changes`` made, or the rule that it breaks."""
        if changes not in self._loaded:
            self._loaded[changes] = self._load(changes)
        return self._loaded[changes]

    def is_valid(self, changes: Changes) -> bool:
        """Whether the configuration with ``changes`` made breaks no rule."""
        return not isinstance(self.config(changes), Untestable)

    def experiment(self, changes: Changes, _on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return the job of the configuration with ``changes`` made."""
        config = self.config(changes)
        if isinstance(config, Untestable):
            return config
        return Experiment(job=bundled_job(config), ranks=tuple(chosen_ranks(config.probe.rank, config)))

    def commands(self, changes: Changes, _on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return commands that probe the good file with ``changes`` as overrides."""
        dialect = ["--from", self.dialect] if self.dialect else []
        mixed = self._mixed(changes)
        changed = dict.fromkeys(key.partition("/")[0] for key in names(self, changes))
        overrides = (f"{key}={_as_override(mixed[key])}" for key in changed)
        words = ["oomscope", "probe", *dialect, self.low.file, *self.overrides, *overrides]
        return (*self.low.write, shlex.join(words))

    @cached_property
    def _flat(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values by key on both sides, with ``allocator.conf/setting`` in place of settings that differ."""
        good, bad = self.low.config.flat(), self.high.config.flat()
        if good[_CONF] != bad[_CONF] and (settings := differing_settings(good[_CONF], bad[_CONF])):
            for side, flat in enumerate((good, bad)):
                flat |= {f"{_CONF}/{name}": values[side] for name, values in settings.items()}
                del flat[_CONF]
        return good, bad

    def _mixed(self, changes: Changes) -> dict[str, Any]:
        """Return the values with ``changes`` made, settings joined again."""
        good, bad = self._flat
        changed = set(names(self, changes))
        mixed = {key: (bad if key in changed else good)[key] for key in good}
        settings = {key.partition("/")[2]: mixed.pop(key) for key in list(mixed) if key.startswith(f"{_CONF}/")}
        return mixed | {_CONF: joined(settings.items())} if settings else mixed

    def _load(self, changes: Changes) -> Config | Untestable:
        from oomscope.config.load import config_from_mapping

        sections: dict[str, dict[str, Any]] = {}
        for dotted, value in self._mixed(changes).items():
            section, _, key = dotted.partition(".")
            sections.setdefault(section, {})[key] = value
        try:
            loaded = config_from_mapping(sections, source="the mixture")
            check_card(loaded)
            return loaded.config
        except ConfigError as error:
            return Untestable(str(error))


def _as_override(value: Any) -> str:
    """Return ``value`` as ``section.key=value`` has it; the empty text is null."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
