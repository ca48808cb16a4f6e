"""Options of ``oomscope bisect`` that say what is walked besides commits: configuration keys and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.changes.change_set import Layer
    from oomscope.bisect.run.places import Places

Command = TypeVar("Command", bound=Callable[..., Any])

AXES = ("commits", "config", "environment", "both")


@dataclass(frozen=True, kw_only=True)
class AxisOptions:
    """What the command line says about axes."""

    axis: str | None = None
    env: str | None = None
    good_env: tuple[str, ...] = ()
    bad_env: tuple[str, ...] = ()
    packages: str | None = None
    hunks: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> AxisOptions:
        """Take the options out of ``given``."""
        return cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})

    @property
    def has_layers(self) -> bool:
        """Whether the environment changes."""
        return bool(self.env or self.good_env or self.bad_env or self.packages)

    def layers(self, places: Places) -> tuple[Layer, ...]:
        """Return the changes of the environment; none where it does not change.

        Args:
            places: where packages are kept that differ from the installed ones.

        Raises:
            UsageError: an option is ill-formed.
            InputError: a file of variables or packages cannot be read.
        """
        return (*self._variables(), *self._packages(places))

    def _variables(self) -> tuple[Layer, ...]:
        from oomscope.bisect.changes.environment import EnvironmentDeltas, parse_variables, read_environment

        if not (self.env or self.good_env or self.bad_env):
            return ()
        names, low, high = ("the good environment", "the bad environment"), {}, {}
        if self.env:
            files = two_files(self.env, "--env")
            low, high = (read_environment(file) for file in files)
            names = (str(files[0]), str(files[1]))
        low |= parse_variables(self.good_env, "--good-env")
        high |= parse_variables(self.bad_env, "--bad-env")
        return (EnvironmentDeltas(low=low, high=high, good=names[0], bad=names[1]),)

    def _packages(self, places: Places) -> tuple[Layer, ...]:
        from oomscope.bisect.changes.packages import Overlays, PackageDeltas, read_requirements

        if not self.packages:
            return ()
        good, bad = two_files(self.packages, "--packages")
        return (
            PackageDeltas(
                low=read_requirements(good),
                high=read_requirements(bad),
                overlays=Overlays(places.packages.absolute()),
                good=str(good),
                bad=str(bad),
                inherited=os.environ.get("PYTHONPATH", ""),
            ),
        )


def axis_options(command: Command) -> Command:
    """Add the options; :meth:`AxisOptions.of` takes their values."""
    options = (
        click.option(
            "--axis",
            type=click.Choice(AXES),
            metavar="AXIS",
            help="commits, config (the default between files), environment, or both (code and config).",
        ),
        click.option("--env", metavar="FILE..FILE", help="Variables of both sides, mixed with the keys."),
        click.option("--good-env", multiple=True, metavar="NAME=VALUE", help="A variable of the good side."),
        click.option("--bad-env", multiple=True, metavar="NAME=VALUE", help="A variable of the bad side."),
        click.option("--packages", metavar="FILE..FILE", help="Lock files (pip freeze) of both sides, mixed likewise."),
        click.option(
            "--hunks", is_flag=True, help="Narrow the culprit commit to its hunks, or to the keys it changed."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def two_files(text: str, option: str) -> tuple[Path, Path]:
    """Return the two files that ``text`` names.

    Raises:
        UsageError: one of them is not there.
    """
    from oomscope.bisect.vcs.ranges import FileRange, parse_range

    found = parse_range(text)
    if isinstance(found, FileRange) and isinstance(found.good, Path) and isinstance(found.bad, Path):
        return found.good, found.bad
    raise UsageError(f"{text!r} names no two files", where=option, remedy="write GOOD-FILE..BAD-FILE")
