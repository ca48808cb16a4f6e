"""Options that several commands share, the types of their values, and groups that import their commands late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from oomscope.cli.completion import complete_card
from oomscope.cli.terminal.output import imported
from oomscope.errors import OomscopeError, UsageError
from oomscope.printable import quoted
from oomscope.units import MiB, parse_size

if TYPE_CHECKING:
    from oomscope.config.settings import Override
    from oomscope.snapshot.read.limits import Limits

Command = TypeVar("Command", bound=Callable[..., Any])

MOST = 2**31 - 1
"""The most that a count in a configuration can be."""
MOST_JOBS = 64
FILE = click.Path(path_type=Path)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, and not for a help text.

    Args:
        lazy: by name, ``module:attribute`` and the command's line in the help of the group.
        given: what click's own groups take.
    """

    def __init__(self, *given: Any, lazy: Mapping[str, tuple[str, str]], **named: Any) -> None:
        super().__init__(*given, **named)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a newcomer needs them."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None for an unknown name."""
        if cmd_name not in self.lazy:
            return None
        command: click.Command = imported(self.lazy[cmd_name][0])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.lazy.items()])


def option(*names: str, **attributes: Any) -> Any:
    """Return a dataclass field for the option ``names``; ``attributes`` are those of :func:`click.option`."""
    if attributes.get("is_flag"):
        default: Any = False
    else:
        default = () if attributes.get("multiple") else attributes.get("default")
    return field(default=default, metadata={"option": (names, attributes)})


class Options:
    """Base of the dataclasses whose fields are options."""

    @classmethod
    def add(cls, command: Command) -> Command:
        """Give ``command`` the options in the order of the fields; :meth:`of` takes their values."""
        for each in reversed(fields(cls)):  # type: ignore[arg-type] # a subclass is a dataclass
            names, attributes = each.metadata["option"]
            command = click.option(*names, each.name, **attributes)(command)
        return command

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Take the values out of what a command was ``given``."""
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: given.pop(name) for name in names if name in given})


class Size(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.5
    """Bytes, such as ``80GiB``; kept as written for messages and commands."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it names a size."""
        try:
            parse_size(value)
        except OomscopeError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class Limit(Size):
    """The total of a card: a bare number means bytes, and no card is smaller than 1 MiB."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``value`` if it names the size of a card.

        Raises:
            UsageError: it is a bare number that was most likely meant in GiB.
        """
        text = super().convert(value, param, ctx)
        if text.isdecimal() and 0 < int(text) < MiB:
            what = f"--limit {text} is a card of {text} bytes"
            raise UsageError(what, remedy=f"say --limit {text}GiB if you mean that")
        return text


class Jobs(click.ParamType):  # type: ignore[type-arg]
    """A number of probes, or as many as this process has cores."""

    name = "jobs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if value == "auto":
            from oomscope.probe.machine.processes import cores

            return min(MOST_JOBS, cores())
        try:
            return int(click.IntRange(1, MOST_JOBS).convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{quoted(value)} is neither a whole number from 1 to {MOST_JOBS} nor auto", param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def json_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` ``--json`` and ``--summary``: it gets ``form``, the document to print; None for a report."""

    @json_option
    @click.option("--summary", "is_summary", is_flag=True, help="With --json: a summary below 2 KB.")
    @wraps(command)
    def with_form(*words: Any, as_json: bool, is_summary: bool, **given: Any) -> Any:
        if is_summary and not as_json:
            raise UsageError("--summary without --json", remedy="give both")
        form = "summary" if is_summary else "whole" if as_json else None
        return command(*words, form=form, **given)

    return with_form


html_option = click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
csv_option = click.option("--csv", "tables", type=FILE, metavar="DIR", help="Write the tables as CSV files into DIR.")
full_option = click.option("--full", is_flag=True, help="Print every table instead of the first lines.")
force_option = click.option("--force", is_flag=True, help="Overwrite files that exist.")
fresh_option = click.option("--fresh", is_flag=True, help="Ignore cached results.")
link_base_option = click.option(
    "--link-base",
    metavar="URL",
    help="Link commits and lines to this page of the repository; '' for no links (default: that of origin).",
)
redact_option = click.option(
    "--redact",
    type=click.Choice(["paths", "source", "all"]),
    help="Hide folders; files, functions and lines as well; or modules and annotations, too.",
)
limit_option = click.option(
    "--limit", type=Limit(), metavar="SIZE", help="Assume a card of SIZE bytes in total, such as 80GiB."
)
gpu_option = click.option(
    "--gpu", metavar="NAME", shell_complete=complete_card, help="Assume the total of this real card, such as h100-80gb."
)
world_size_option = click.option(
    "--world-size",
    type=click.IntRange(1, MOST),
    metavar="N",
    help="Number of ranks of the world that a harness or program sees (default: none); with --from, of the job.",
)
devices_option = click.option(
    "--devices",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Cards that each process sees on virtual (default: 1, or as many as its launcher starts processes).",
)
jobs_option = click.option(
    "--jobs",
    type=Jobs(),
    default=1,
    metavar="N",
    help="Probes at once, a core or a GPU each (auto: one per core); the answer is the same (default: 1).",
)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds ``options`` in this order."""

    def add(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return add


progress_options = together(
    click.option("--quiet", "verbosity", flag_value="quiet", help="Print no progress."),
    click.option(
        "--verbose",
        "verbosity",
        flag_value="verbose",
        help="Print progress as permanent lines, also without a terminal.",
    ),
)
"""The command gets ``verbosity``: ``quiet``, ``verbose`` or None; the later option counts."""


def _how_to_measure(rank: str) -> Callable[[Command], Command]:
    """Return the options of a measurement; the help names ``rank`` as the default."""
    return together(
        limit_option,
        gpu_option,
        click.option(
            "--backend",
            type=click.Choice(["auto", "cuda", "virtual"]),
            metavar="NAME",
            help="Where to measure: auto, cuda or virtual (default: auto).",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(1, MOST),
            metavar="N",
            help="Training steps (default: 2, of a program 3).",
        ),
        click.option(
            "--timeout", type=click.FLOAT, metavar="SECONDS", help="End a probe after this long (default: 600)."
        ),
        click.option(
            "--rank", metavar="N|first|last|worst", help=f"Which rank of the world to play (default: {rank})."
        ),
        world_size_option,
        click.option(
            "--compute-values",
            is_flag=True,
            default=None,
            help="On virtual, compute values on the host: for programs whose sizes depend on them. Slow.",
        ),
    )


measurement_options = _how_to_measure("first")
"""Options for how to measure; :func:`settings_overrides` takes the values."""
variant_options = _how_to_measure("one of every pipeline stage")
"""Options for how to measure, for commands that compare configurations."""
_KEYS = {
    "backend": "probe.backend",
    "rank": "probe.rank",
    "world_size": "probe.world_size",
    "iterations": "probe.iterations",
    "timeout": "probe.timeout_s",
    "limit": "device.limit",
    "gpu": "device.gpu",
    "devices": "device.count",
    "compute_values": "device.compute_values",
}
"""Option of a measurement to configuration key."""


def settings_overrides(given: dict[str, Any]) -> list[Override]:
    """Take the options of a measurement out of ``given``, and return the overrides that they stand for."""
    from oomscope.config.settings import Override

    values = {option: given.pop(option) for option in _KEYS if option in given}
    return [
        Override(f"{_KEYS[option]}={value}", written=_written(option, value))
        for option, value in values.items()
        if value is not None
    ]


def _written(option: str, value: Any) -> str:
    name = f"--{option.replace('_', '-')}"
    return name if value is True else f"{name} {value}"


card_options = together(
    limit_option,
    gpu_option,
    click.option("--non-torch", type=Size(), metavar="SIZE", help="Bytes of the card outside PyTorch (default: none)."),
)


def _known_torch(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the version of torch that is given, checked."""
    if value is None:
        return None
    from oomscope.allocator.settings import parse_version
    from oomscope.torch_versions import NEWEST, text_of

    if parse_version(value) > NEWEST:
        remedy = f"give one up to {text_of(NEWEST)}"
        raise UsageError(f"the allocator of torch {value} is not modelled", where="--torch-version", remedy=remedy)
    return value


torch_version_option = click.option(
    "--torch-version",
    metavar="V",
    callback=_known_torch,
    help="Use this torch version's allocator rules (default: those that fit the trace).",
)


def _limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Limits:
    from oomscope.snapshot.read.limits import Limits

    return Limits.of(values)


snapshot_limits_options = click.option(
    "--read-limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    envvar="OOMSCOPE_READ_LIMITS",
    show_envvar=True,
    callback=_limits,
    help="Limits for reading a file, such as memory=32GiB, file=8GiB or seconds=60.",
)
