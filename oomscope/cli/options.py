"""Options that several commands share. Those of a measurement stand for configuration keys and become overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from oomscope.errors import OomscopeError
from oomscope.units import parse_size

Command = TypeVar("Command", bound=Callable[..., Any])

SETTINGS = {
    "backend": "probe.backend",
    "rank": "probe.rank",
    "iterations": "probe.iterations",
    "timeout": "probe.timeout_s",
    "limit": "device.limit",
    "gpu": "device.gpu",
}
"""Option to configuration key."""


class Size(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """Bytes, such as ``80GiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes that ``value`` names."""
        try:
            return parse_size(value)
        except OomscopeError as error:
            self.fail(str(error), param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def measurement_options(command: Command) -> Command:
    """Add the options that say how to measure."""
    options = (
        click.option("--limit", type=Size(), metavar="SIZE", help="A card with SIZE bytes in all, such as 80GiB."),
        click.option("--gpu", metavar="NAME", help="A real card's total, such as h100-80gb or a100-40gb."),
        click.option("--backend", type=click.Choice(["auto", "sim", "cuda"]), help="Where to measure (default: auto)."),
        click.option("--iterations", type=click.IntRange(min=1), help="Training steps (default: 2)."),
        click.option("--timeout", type=float, metavar="SECONDS", help="End a probe after this long (default: 600)."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def settings_overrides(**given: str | int | float | None) -> list[str]:
    """Return the overrides that the options given stand for."""
    return [f"{SETTINGS[name]}={value}" for name, value in given.items() if value is not None]
