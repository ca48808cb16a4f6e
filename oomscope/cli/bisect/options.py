"""Options of ``oomscope bisect``: what is walked, how checkouts are prepared, where probes run, and how sure to be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.options.generate import Options, option
from oomscope.cli.options.types import MOST, Size, finite
from oomscope.errors import UsageError
from oomscope.units import parse_size

if TYPE_CHECKING:
    from oomscope.bisect.changes.change_set import ChangeSet
    from oomscope.bisect.results.noise import Noise
    from oomscope.bisect.results.sections import StepsWanted
    from oomscope.bisect.run.places import Places
    from oomscope.bisect.run.slurm import ClusterSettings
    from oomscope.bisect.targets.preparation import Preparation


AXES = ("commits", "config", "environment", "both")


@dataclass(frozen=True, kw_only=True)
class AxisOptions(Options):
    """What the command line says about axes."""

    axis: str | None = option(
        "--axis",
        type=click.Choice(AXES),
        metavar="AXIS",
        help="commits, config (the default between files), environment, or both (code and config).",
    )
    env: str | None = option(
        "--env", metavar="FILE..FILE", help="Environment variables of both sides, searched like keys."
    )
    good_env: tuple[str, ...] = option(
        "--good-env", multiple=True, metavar="NAME=VALUE", help="A variable of the good side."
    )
    bad_env: tuple[str, ...] = option(
        "--bad-env", multiple=True, metavar="NAME=VALUE", help="A variable of the bad side."
    )
    packages: str | None = option(
        "--packages", metavar="FILE..FILE", help="Lock files (pip freeze) of both sides, searched like keys."
    )
    hunks: bool = option(
        "--hunks", is_flag=True, help="Narrow the culprit commit to its hunks, or to the keys it changed."
    )

    @property
    def has_layers(self) -> bool:
        """Whether the environment changes."""
        return bool(self.env or self.good_env or self.bad_env or self.packages)

    def layers(self, places: Places) -> tuple[ChangeSet, ...]:
        """Return the changes of the environment; none where it does not change.

        Args:
            places: where packages are kept that differ from the installed ones.

        Raises:
            UsageError: an option is ill-formed.
            InputError: a file of variables or packages cannot be read.
        """
        return (*self._variables(), *self._packages(places))

    def _variables(self) -> tuple[ChangeSet, ...]:
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

    def _packages(self, places: Places) -> tuple[ChangeSet, ...]:
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


LONGEST_S = 7 * 86_400.0
"""The most that a set-up may be given, in seconds."""


@dataclass(frozen=True, kw_only=True)
class CheckoutOptions(Options):
    """What the command line says about repairs, links and set-ups."""

    fixup: tuple[str, ...] = option(
        "--fixup",
        multiple=True,
        metavar="'RANGE: PATCH|CMD'",
        help="Repair the commits of RANGE (A..B, a revision or *) by a patch file or a command.",
    )
    link: tuple[str, ...] = option(
        "--link",
        multiple=True,
        metavar="PATH",
        help="Link every checkout to PATH of yours, which git does not track (data, .env, a built extension).",
    )
    setup: str | None = option("--setup", metavar="CMD", help="Run CMD in every checkout first, such as a build.")
    setup_timeout: float | None = option(
        "--setup-timeout",
        type=click.FloatRange(min=0, min_open=True, max=LONGEST_S),
        callback=finite,
        metavar="SECONDS",
        help="End a --setup, or a command of --fixup, after this long (default: 1800).",
    )

    @property
    def given(self) -> dict[str, bool]:
        """Which of the options were given, by the name that people know."""
        return {"--fixup": bool(self.fixup), "--link": bool(self.link), "--setup": self.setup is not None}

    def preparation(self) -> Preparation:
        """Return what is done to each checkout.

        Raises:
            UsageError: an option is ill-formed, means nothing without another, or names a file that is not there.
        """
        from oomscope.bisect.targets.preparation import TIMEOUT_S, Fixup, Preparation, Setup

        if self.setup is not None and not self.setup.strip():
            raise UsageError("--setup without a command", remedy="give --setup CMD")
        if self.setup is None and not self.fixup and self.setup_timeout is not None:
            raise UsageError("--setup-timeout without a set-up or a repair", remedy="give --setup CMD")
        timeout_s = TIMEOUT_S if self.setup_timeout is None else self.setup_timeout
        return Preparation(
            fixups=tuple(Fixup.parse(text) for text in self.fixup),
            setup=None if self.setup is None else Setup(command=self.setup, timeout_s=timeout_s),
            links=self.link,
            timeout_s=timeout_s,
        )


_LOCAL, _SLURM = "local", "slurm"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """What the command line says about where probes are run."""

    executor: str = option(
        "--executor",
        type=click.Choice([_LOCAL, _SLURM]),
        default=_LOCAL,
        metavar="[local|slurm]",
        help="Where probes run: here (default), or as Slurm jobs, --jobs of them at once.",
    )
    slurm: tuple[str, ...] = option(
        "--slurm",
        multiple=True,
        metavar="NAME=VALUE",
        help="An option of sbatch for each job, such as partition=gpu or gpus-per-node=1.",
    )

    def settings(self) -> ClusterSettings | None:
        """Return where jobs go; None for this machine.

        Raises:
            UsageError: options for jobs without any, or ones that jobs cannot have.
        """
        from oomscope.bisect.run.slurm import ClusterSettings

        if self.executor == _SLURM:
            return ClusterSettings.parse(self.slurm)
        if self.slurm:
            raise UsageError("--slurm without jobs", remedy="add --executor slurm, or leave it out")
        return None


_LEAST = 0.5


class Probability(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """A probability at which something may be called the answer."""

    name = "probability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, which lies between a half and one."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not _LEAST < number < 1:
            self.fail(f"{value} is not a probability above {_LEAST} and below 1.", param, ctx)
        return number


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(Options):
    """What the command line says about answers that may be wrong."""

    confidence: float | None = option(
        "--confidence",
        type=Probability(),
        metavar="P",
        help="Allow for wrong answers: repeat probes until one candidate has probability P (cuda: 0.95).",
    )
    repeats: int | None = option(
        "--repeats",
        type=click.IntRange(1, MOST),
        metavar="N",
        help="Probe one commit or combination up to N times (default: 20); 1 takes every answer as correct.",
    )

    def wanted(self) -> Noise | None:
        """Return how to meet noise; None leaves it to the backend.

        Raises:
            UsageError: a confidence is asked for, and nothing may be probed more than once.
        """
        from oomscope.bisect.results.noise import CONFIDENCE, REPEATS, Noise

        if self.confidence is None and self.repeats is None:
            return None
        repeats = REPEATS if self.repeats is None else self.repeats
        if self.confidence is not None and repeats == 1:
            raise UsageError(
                "--confidence with --repeats 1",
                remedy="leave one out: with one probe of each every answer is believed",
            )
        return Noise(confidence=CONFIDENCE if self.confidence is None else self.confidence, repeats=repeats)


_EXHAUSTIVE = "--exhaustive"
_ALL = "all"


class Looks(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """A number of commits, or all of them."""

    name = "looks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; as large as any history for ``all``."""
        from oomscope.bisect.results.sections import EVERYWHERE

        if value == _ALL:
            return EVERYWHERE
        try:
            return int(click.IntRange(1, MOST).convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a whole number from 1 to {MOST}, nor {_ALL}", param, ctx)


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """What the command line says about steps and about where they begin."""

    steps: bool = option("--steps", is_flag=True, help="Find every commit that changed requested bytes or overhead.")
    min_step: str | None = option(
        "--min-step",
        type=Size(),
        metavar="SIZE",
        help="Steps are changes above SIZE (default: requested 0, overhead 20MiB; cuda: spread); implies --steps.",
    )
    exhaustive: int | None = option(
        _EXHAUSTIVE,
        type=Looks(),
        metavar="[=N]",
        help="Probe all commits (or N) also where both ends are equal; implies --steps.",
    )
    find_good: bool = option(
        "--find-good", is_flag=True, help="Look for a good end: 1, 3, 7, 14, 30 and 60 days before ..BAD."
    )

    def wanted(self) -> StepsWanted | None:
        """Return which steps are asked for; None for none."""
        from oomscope.bisect.results.sections import StepsWanted
        from oomscope.bisect.search.steps import Threshold

        if not (self.steps or self.min_step is not None or self.exhaustive):
            return None
        least = None if self.min_step is None else Threshold.of(parse_size(self.min_step, where="--min-step"))
        return StepsWanted(threshold=least, looks=self.exhaustive or 0)


def with_values(arguments: Sequence[str]) -> list[str]:
    """Return ``arguments`` in which ``--exhaustive`` has a value, so that it does not take the next word for one."""
    return [f"{_EXHAUSTIVE}={_ALL}" if word == _EXHAUSTIVE else word for word in arguments]
