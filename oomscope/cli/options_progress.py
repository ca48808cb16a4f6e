"""``--quiet`` and ``--verbose``: how much a command says on standard error while it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Telling = Literal["quiet", "terminal", "verbose"]
"""No progress at all; progress where a terminal shows it; that and lines that stay, also in a log."""


def progress_options(command: Command) -> Command:
    """Add the options; the command gets ``telling``. The later of two counts."""
    options = (
        click.option("--quiet", "telling", flag_value="quiet", help="No progress on standard error."),
        click.option(
            "--verbose", "telling", flag_value="verbose", help="Progress in lines that stay, also without a terminal."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def telling_of(value: str | None) -> Telling:
    """Return what the two options came to; ``terminal`` where neither was given."""
    return "quiet" if value == "quiet" else "verbose" if value == "verbose" else "terminal"
