"""Options that several commands share. Those of a measurement stand for configuration keys and become overrides."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from oomscope.cli.options.completion import complete_card
from oomscope.cli.options.types import FILE, MOST, Jobs, Limit, Seconds, Size
from oomscope.errors import UsageError
from oomscope.units import parse_size

if TYPE_CHECKING:
    from oomscope.config.settings import Override
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


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
redact_option = click.option(
    "--redact",
    type=click.Choice(["paths", "source", "all"]),
    help="Hide folders; files, functions and lines as well; or modules and annotations, too.",
)


limit_option = click.option(
    "--limit", type=Limit(), metavar="SIZE", help="A card with SIZE bytes in all, such as 80GiB."
)
gpu_option = click.option(
    "--gpu", metavar="NAME", shell_complete=complete_card, help="A real card's total, such as h100-80gb or a100-40gb."
)


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
            help="Order of a virtual card's addresses: ascending, descending or scattered.",
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
    from oomscope.config.settings import Override

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
        help="Limits for reading a file, such as memory=32GiB, file=8GiB or seconds=60.",
    )(command)


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Limits:
    from oomscope.snapshot.read.limits import Limits

    return Limits.of(values)


def progress_options(command: Command) -> Command:
    """Add the options; the command gets ``verbosity``. The later of two counts."""
    options = (
        click.option("--quiet", "verbosity", flag_value="quiet", help="Print no progress."),
        click.option(
            "--verbose",
            "verbosity",
            flag_value="verbose",
            help="Print progress as permanent lines, also without a terminal.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def jobs_option(command: Command) -> Command:
    """Add ``--jobs``."""
    option = click.option(
        "--jobs",
        type=Jobs(),
        default=1,
        metavar="N",
        help="Probes side by side, a core or a GPU each (auto: one a core); the answer is the same (default: 1).",
    )
    return option(command)


class NamedCard(NamedTuple):
    """What the user says of a card."""

    limit: int | None
    """Bytes in all; None where no card is named."""
    non_torch: int
    """Bytes of it that the process holds outside PyTorch."""


def card_options(command: Command) -> Command:
    """Add ``--limit``, ``--gpu`` and ``--non-torch``."""
    options = (
        limit_option,
        gpu_option,
        click.option(
            "--non-torch", type=Size(), metavar="SIZE", help="Bytes of the card outside PyTorch (default: none)."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def named_card(limit: str | None, gpu: str | None, non_torch: str | None) -> NamedCard:
    """Return what the three options say.

    Raises:
        UsageError: two cards are named, none of a name is known, or memory outside PyTorch is given of no card.
    """
    if limit is not None and gpu is not None:
        raise UsageError(f"both --limit {limit} and --gpu {gpu}", remedy="name one card")
    if non_torch is not None and limit is None and gpu is None:
        raise UsageError("--non-torch without a card", remedy="give --limit SIZE or --gpu NAME as well")
    total = None if limit is None else parse_size(limit)
    if gpu is not None:
        from oomscope.virtual.cards import find_card

        total = find_card(gpu).total_bytes
    return NamedCard(total, parse_size(non_torch or 0))


csv_option = click.option("--csv", "tables", type=FILE, metavar="DIR", help="Write the tables as CSV files into DIR.")
full_option = click.option("--full", is_flag=True, help="Print every table instead of the first lines.")
