"""Options of ``oomscope bisect`` over commits: every step of bytes beside the culprit, and no good end given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options import MOST, Size
from oomscope.units import parse_size

if TYPE_CHECKING:
    from oomscope.bisect.results.sections import StepsWanted

Command = TypeVar("Command", bound=Callable[..., Any])

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
            self.fail(f"{value!r} is no whole number from 1 to {MOST}, nor {_ALL}", param, ctx)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What the command line says about steps and about where they begin."""

    steps: bool = False
    min_step: str | None = None
    exhaustive: int | None = None
    find_good: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> StepOptions:
        """Take the options out of ``given``."""
        return cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})

    def wanted(self) -> StepsWanted | None:
        """Return which steps are asked for; None for none."""
        from oomscope.bisect.results.sections import StepsWanted
        from oomscope.bisect.search.steps import Threshold

        if not (self.steps or self.min_step is not None or self.exhaustive):
            return None
        least = None if self.min_step is None else Threshold.of(parse_size(self.min_step, where="--min-step"))
        return StepsWanted(threshold=least, looks=self.exhaustive or 0)


def step_options(command: Command) -> Command:
    """Add the options; :meth:`StepOptions.of` takes their values."""
    options = (
        click.option("--steps", is_flag=True, help="Find every commit that changed requested bytes or overhead."),
        click.option(
            "--min-step",
            type=Size(),
            metavar="SIZE",
            help="Steps are changes above SIZE (default: requested 0, overhead 20MiB; cuda: spread); implies --steps.",
        ),
        click.option(
            _EXHAUSTIVE,
            type=Looks(),
            metavar="[=N]",
            help="Probe all commits (or N, spread) where ends are equal, too; implies --steps.",
        ),
        click.option(
            "--find-good", is_flag=True, help="Look for a good end: 1, 3, 7, 14, 30 and 60 days before ..BAD."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def with_values(arguments: Sequence[str]) -> list[str]:
    """Return ``arguments`` in which ``--exhaustive`` has a value, so that it does not take the next word for one."""
    return [f"{_EXHAUSTIVE}={_ALL}" if word == _EXHAUSTIVE else word for word in arguments]
