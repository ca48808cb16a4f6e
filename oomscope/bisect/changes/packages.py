"""Packages in which two lock files differ, as changes: versions laid over the environment that oomscope runs in.

Packages that are not installed in the version wanted go into a folder of their own, first on ``PYTHONPATH``. pip makes
each folder once, beside the results. Everything else (torch, oomscope itself) is the environment's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from oomscope.bisect.changes.change_set import NOTHING_RUNS, ChangeSet
from oomscope.bisect.results.result import KeyChange, absent_side
from oomscope.bisect.run.experiment import Experiment
from oomscope.bisect.search.deltas import Changes
from oomscope.bisect.search.measured import Untestable
from oomscope.errors import TargetError, UsageError
from oomscope.probe.machine.fingerprint import version_of
from oomscope.probe.process.tempdirs import tempdir
from oomscope.units import Bytes

_PREFIX: Final = "package:"
_VARIABLE: Final = "PYTHONPATH"
_NAMED: Final = 8
"""Packages that cannot be compared and that a note names at most."""


@dataclass(frozen=True, kw_only=True)
class PackageDeltas(ChangeSet):
    """Two sets of requirements by name.

    Args:
        low: the good side's.
        high: the bad side's.
        overlays: where folders of packages are kept.
        inherited: the user's PYTHONPATH, which stays behind the folder.
        installed: the version of a distribution in the environment.
        left_out: packages of either side that cannot be compared, with the reasons.

    Raises:
        UsageError: a package that one side lacks is installed, so that it cannot be left out.
    """

    low: Mapping[str, str]
    high: Mapping[str, str]
    overlays: Overlays
    ends: tuple[str, str] = ("the good packages", "the bad packages")
    inherited: str = ""
    installed: Callable[[str], str | None] = version_of
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be mixed."""
        for name in self._names:
            if (name not in self.low or name not in self.high) and self.installed(name) is not None:
                side = self.good if name not in self.low else self.bad
                raise UsageError(
                    f"{name} is installed here, so it cannot be left out",
                    where=side,
                    remedy="run oomscope in an environment without it, or name its version in both files",
                )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """``package:NAME`` for each package that differs."""
        return tuple(f"{_PREFIX}{name}" for name in self._names)

    def change(self, key: str, delta: Bytes | None = None) -> KeyChange:
        """Return the package with both its requirements; None where it is not named."""
        name = key.removeprefix(_PREFIX)
        good, bad = self.low.get(name), self.high.get(name)
        absent_from = absent_side(in_good=good is not None, in_bad=bad is not None)
        return KeyChange(key=key, good=good, bad=bad, delta=delta, absent_from=absent_from)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which packages are not compared."""
        shown, more = self.left_out[:_NAMED], len(self.left_out) - _NAMED
        if not shown:
            return ()
        return (f"packages that are not compared: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}",)

    def requirements(self, changes: Changes) -> tuple[str, ...]:
        """Return what has to be installed over the environment for ``changes``, sorted."""
        made = {self._names[change] for change in changes}
        wanted = {
            name: (self.high if name in made or name not in self.low else self.low)[name]
            for name in sorted(self.low.keys() | self.high.keys())
            if name in (self.high if name in made else self.low)
        }
        return tuple(text for name, text in wanted.items() if not self._is_installed(name, text))

    def experiment(self, changes: Changes, on: Experiment | None = None, /) -> Experiment | Untestable:
        """Return the run ``on`` with the packages of ``changes`` first on its path; they are installed when it runs."""
        if on is None:
            return NOTHING_RUNS
        requirements, experiment = self.requirements(changes), on
        if not requirements:
            return experiment
        behind = experiment.job.environment.get(_VARIABLE) or self.inherited
        folder = self.overlays.folder(requirements)

        def lay_out(place: Path) -> tuple[str, ...]:
            self.overlays.install(requirements)
            return experiment.lay_out(place)

        path = os.pathsep.join(filter(None, (str(folder), behind)))
        job = replace(experiment.job, environment={**experiment.job.environment, _VARIABLE: path})
        content = replace(experiment.content, packages=folder.name)
        return replace(experiment, job=job, content=content, lay_out=lay_out)

    def commands(self, changes: Changes, on: tuple[str, ...] = (), /) -> tuple[str, ...]:
        """Return ``on``, whose last command is run with the folder of ``changes`` first on its path."""
        requirements = self.requirements(changes)
        if not requirements:
            return on
        folder = shlex.quote(str(self.overlays.folder(requirements)))
        return (*on[:-1], f"{_VARIABLE}={folder}${{{_VARIABLE}:+:${_VARIABLE}}} {on[-1]}")

    @cached_property
    def _names(self) -> tuple[str, ...]:
        both = sorted(self.low.keys() | self.high.keys())
        return tuple(name for name in both if self.low.get(name) != self.high.get(name))

    def _is_installed(self, name: str, requirement: str) -> bool:
        version = self.installed(name)
        return version is not None and requirement.partition(";")[0].replace(" ", "").partition("==")[2] == version


_PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check")


@dataclass(frozen=True)
class Overlays:
    """Folders under ``root``, named by what is in them. Several searches may share it."""

    root: Path

    def folder(self, requirements: Sequence[str]) -> Path:
        """Return where ``requirements`` are, or will be."""
        made_of = [sys.version, sys.platform, *sorted(requirements)]
        return self.root / hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:32]

    def install(self, requirements: Sequence[str]) -> None:
        """Install ``requirements``, and nothing that they depend on, unless they are there already.

        pip takes its index from its own variables and settings (``PIP_INDEX_URL``, ``PIP_NO_INDEX``,
        ``PIP_FIND_LINKS``). A folder is there whole or not at all.

        Raises:
            TargetError: pip failed; says what it said, in one line.
        """
        folder = self.folder(requirements)
        if folder.is_dir():
            return
        with tempdir(self.root, "install") as place:
            made = place / "packages"
            command = [*_PIP, "--target", str(made), *sorted(requirements)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode != 0:
                lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
                errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"status {done.returncode}"]
                message = errors[-1].removeprefix("ERROR: ")
                raise TargetError(message, where="pip install", remedy="see that pip's index has these versions")
            with contextlib.suppress(OSError):  # another search made it meanwhile
                made.rename(folder)
        if not folder.is_dir():
            remedy = "see that it can be written to and that its disk has room"
            raise TargetError("the folder of packages cannot be written", where=str(folder), remedy=remedy)
