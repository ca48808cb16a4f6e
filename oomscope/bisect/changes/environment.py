"""Environment variables in which two runs differ, as changes; each setting of the allocator's variable is one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from oomscope.allocator.alloc_conf import joined, pairs_of
from oomscope.allocator.settings import AllocatorSettings
from oomscope.bisect.changes.change_set import NOTHING_RUNS, ChangeSet, names
from oomscope.bisect.results.result import KeyChange, absent_side
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.run.identity import affects_result
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.measured import Untestable
from oomscope.errors import AllocatorConfError, InputError, UsageError
from oomscope.printable import quoted
from oomscope.probe.machine.environment import ALLOCATOR_VARIABLES
from oomscope.probe.machine.fingerprint import installed_torch
from oomscope.units import Bytes

_PREFIX = "env:"
_CREDENTIAL = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY(_ID)?|PRIVATE_KEY)$", re.IGNORECASE
)
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class EnvironmentDeltas(ChangeSet):
    """Two sets of variables; one that a set lacks is unset, whatever the user's environment holds.

    Variables of the terminal, the shell and the login are left out, since no result depends on them; so are
    credentials (``HF_TOKEN``, ``AWS_SECRET_ACCESS_KEY``), which a report must not show.
    """

    low: Mapping[str, str]
    high: Mapping[str, str]
    ends: tuple[str, str] = ("the good environment", "the bad environment")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """``env:NAME`` for each variable, ``env:NAME/setting`` for each setting of the allocator's."""
        return tuple(self._by_key)

    def is_valid(self, changes: Changes) -> bool:
        """Whether torch would accept the allocator's settings."""
        values = self.values(changes)
        try:
            for name in ALLOCATOR_VARIABLES:
                AllocatorSettings.parse(values.get(name) or "", torch_version=installed_torch())
        except AllocatorConfError:
            return False
        return True

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the variable or setting with both its values; None where it is not set."""
        good, bad = self._by_key[key]
        absent_from = absent_side(in_good=good is not None, in_bad=bad is not None)
        return KeyChange(key=key, good=good, bad=bad, delta=delta, absent_from=absent_from)

    def values(self, changes: Changes) -> dict[str, str | None]:
        """Return the variables that differ, as they are with ``changes`` made; None for one that is not set."""
        made = set(names(self, changes))
        values: dict[str, str | None] = {}
        for name in dict.fromkeys(key.removeprefix(_PREFIX).partition("/")[0] for key in self.keys):
            key, sides = f"{_PREFIX}{name}", (self.low.get(name), self.high.get(name))
            if key in self._by_key:
                values[name] = sides[key in made]
            else:
                settings = differing_settings(*sides)
                chosen = {setting: both[f"{key}/{setting}" in made] for setting, both in settings.items()}
                values[name] = joined(chosen.items()) or None
        return values

    def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return the run ``on`` with the variables set as ``changes`` have them."""
        if on is None:
            return NOTHING_RUNS
        return replace(on, job=replace(on.job, environment={**on.job.environment, **self.values(changes)}))

    def commands(self, changes: Changes, on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return ``on``, whose last command is run under the variables as ``changes`` have them."""
        values = self.values(changes)
        unset = [word for name, value in values.items() if value is None for word in ("-u", name)]
        given = [f"{name}={value}" for name, value in values.items() if value is not None]
        return (*on[:-1], f"{shlex.join(['env', *unset, *given])} {on[-1]}")

    @cached_property
    def _by_key(self) -> dict[str, tuple[str | None, str | None]]:
        """Both values of each change."""
        found: dict[str, tuple[str | None, str | None]] = {}
        for name in sorted(self.low.keys() | self.high.keys()):
            good, bad = self.low.get(name), self.high.get(name)
            if good == bad or not affects_result(name) or _CREDENTIAL.search(name):
                continue
            settings = differing_settings(good, bad) if name in ALLOCATOR_VARIABLES else {}
            if not settings:
                found[f"{_PREFIX}{name}"] = good, bad
            found |= {f"{_PREFIX}{name}/{each}": both for each, both in settings.items() if both[0] != both[1]}
        return found


def read_environment(path: Path) -> dict[str, str]:
    """Return the variables of a file of ``NAME=VALUE`` lines: ``env``'s output, or one that a shell reads.

    Empty lines, comments and ``export`` are ignored, and quotes taken off as a shell does.

    Raises:
        InputError: the file cannot be read, or a line is not ``NAME=VALUE``.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot be read: {why}", where=str(path), remedy="give a file of NAME=VALUE lines") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        variable = _VARIABLE.fullmatch(text)
        if variable is None:
            where, remedy = f"{path}:{number}", "write one variable on each line"
            raise InputError(f"{quoted(text)} is not NAME=VALUE", where=where, remedy=remedy)
        found[variable[1]] = _unquoted(variable[2])
    return found


def parse_variables(words: tuple[str, ...], option: str) -> dict[str, str]:
    """Return the variables that ``NAME=VALUE`` words of ``option`` name.

    Raises:
        UsageError: a word is not one.
    """
    found = {}
    for word in words:
        variable = _VARIABLE.fullmatch(word)
        if variable is None:
            raise UsageError(
                f"{quoted(word)} is not NAME=VALUE", where=option, remedy="write such as OMP_NUM_THREADS=4"
            )
        found[variable[1]] = variable[2]
    return found


def _unquoted(value: str) -> str:
    """Return ``value`` without the quotes around all of it; any other is as ``env`` prints it, spaces included."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        try:
            return "".join(shlex.split(value))
        except ValueError:
            return value
    return value


def differing_settings(good: str | None, bad: str | None) -> dict[str, tuple[str | None, str | None]]:
    """Return each setting of two texts with both its values; empty where there are fewer than two to tell apart."""
    before, after = dict(pairs_of(good or "")), dict(pairs_of(bad or ""))
    names = dict.fromkeys((*before, *after))
    return {name: (before.get(name), after.get(name)) for name in names} if len(names) > 1 else {}
