"""Options that several commands share. Those of a measurement stand for configuration keys and become overrides."""

from __future__ import annotations

import math
import mimetypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.errors import OomscopeError
from oomscope.units import parse_size

if TYPE_CHECKING:
    from oomscope.config.overrides import Override
    from oomscope.snapshot.read.limits import Limits

Command = TypeVar("Command", bound=Callable[..., Any])

SETTINGS = {
    "backend": "probe.backend",
    "rank": "probe.rank",
    "world_size": "probe.world_size",
    "iterations": "probe.iterations",
    "timeout": "probe.timeout_s",
    "limit": "device.limit",
    "gpu": "device.gpu",
    "address_policy": "device.address_policy",
}
"""Option to configuration key."""
MOST = 2**31 - 1
"""The most that a count in a configuration can be."""


class Size(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """Bytes, such as ``80GiB``; kept as written, so that messages and commands say what the user said."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it names a size."""
        try:
            parse_size(value)
        except OomscopeError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A time, kept as written for the same reason."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it is a number; which ones make sense is for the configuration to say."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        return str(value)


class Picture(click.Path):
    """A file for a PNG picture: no name that promises a picture of another kind."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        kind, _ = mimetypes.guess_type(os.fspath(value))
        if kind in _OTHER_PICTURES or ((kind or "").startswith("image/") and kind != "image/png"):
            self.fail(f"{os.fspath(value)!r} would hold a PNG picture; end its name in .png", param, ctx)
        return super().convert(value, param, ctx)


FILE = click.Path(path_type=Path)
PICTURE = Picture()
_OTHER_PICTURES = {"application/pdf", "application/postscript"}
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
redact_option = click.option(
    "--redact",
    type=click.Choice(["paths", "source", "all"]),
    help="Hide folders; files, functions and lines as well; or modules and annotations, too.",
)


def finite(_ctx: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse ``nan`` and ``inf``, which click takes for numbers.

    Raises:
        click.BadParameter: the value is one of them.
    """
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds.")
    return value


limit_option = click.option(
    "--limit", type=Size(), metavar="SIZE", help="A card with SIZE bytes in all, such as 80GiB."
)
gpu_option = click.option("--gpu", metavar="NAME", help="A real card's total, such as h100-80gb or a100-40gb.")


world_size_option = click.option(
    "--world-size",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Ranks of the world: with --harness or a program those that it sees (default: 1), with --from the job's.",
)


def measurement_options(command: Command) -> Command:
    """Add the options that say how to measure."""
    options = (
        limit_option,
        gpu_option,
        click.option(
            "--backend",
            type=click.Choice(["auto", "cuda", "virtual"]),
            metavar="NAME",
            help="Where to measure: auto, cuda or virtual (default: auto).",
        ),
        click.option(
            "--address-policy",
            type=click.Choice(["ascending", "descending", "scattered"]),
            metavar="ORDER",
            help="Of a virtual card's addresses: ascending, descending or scattered.",
        ),
        click.option("--iterations", type=click.IntRange(1, MOST), metavar="N", help="Training steps (default: 2)."),
        click.option(
            "--timeout", type=Seconds(), metavar="SECONDS", help="End a probe after this long (default: 600)."
        ),
        click.option("--rank", metavar="N|first|last|worst", help="Which rank of the world to play (default: first)."),
        world_size_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def settings_overrides(given: dict[str, Any]) -> list[Override]:
    """Take what options of a measurement ``given`` has out of it, and return the overrides that they stand for."""
    from oomscope.config.overrides import Override

    values = {option: given.pop(option) for option in SETTINGS if option in given}
    return [
        Override(f"{SETTINGS[option]}={value}", written=f"--{option.replace('_', '-')} {value}")
        for option, value in values.items()
        if value is not None
    ]


def snapshot_limits_options(command: Command) -> Command:
    """Add ``--read-limit``; the command gets the ``limits`` of :func:`oomscope.snapshot.read.load.load_snapshot`."""
    return click.option(
        "--read-limit",
        "limits",
        multiple=True,
        metavar="NAME=VALUE",
        envvar="OOMSCOPE_READ_LIMITS",
        show_envvar=True,
        callback=_limits,
        help="What reading a file may take, such as memory=32GiB, file=8GiB or seconds=60.",
    )(command)


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Limits:
    from oomscope.snapshot.read.limits import Limits

    return Limits.of(values)
