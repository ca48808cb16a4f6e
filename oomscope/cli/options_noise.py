"""Options of ``oomscope bisect`` where a probe may answer wrongly: how sure to be, at what cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.cli.options import MOST
from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.results.noise import Noise

Command = TypeVar("Command", bound=Callable[..., Any])

_LEAST = 0.5


class Probability(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """A probability at which something may be called the answer."""

    name = "probability"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, which lies between a half and one."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not _LEAST < number < 1:
            self.fail(f"{value} is no probability above {_LEAST} and below 1.", param, ctx)
        return number


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """What the command line says about answers that may be wrong."""

    confidence: float | None = None
    repeats: int | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> NoiseOptions:
        """Take the options out of ``given``."""
        return cls(**{name: given.pop(name) for name in cls.__dataclass_fields__})

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


def noise_options(command: Command) -> Command:
    """Add the options; :meth:`NoiseOptions.of` takes their values."""
    options = (
        click.option(
            "--confidence",
            type=Probability(),
            metavar="P",
            help="Weigh answers that may be wrong, and probe again until one is this probable (cuda: 0.95).",
        ),
        click.option(
            "--repeats",
            type=click.IntRange(1, MOST),
            metavar="N",
            help="Probe one commit, or mixture, up to N times for that (default: 20); 1 believes every answer.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
