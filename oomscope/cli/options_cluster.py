"""Options of ``oomscope bisect`` that say where probes are run: on this machine, or as jobs of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from oomscope.errors import UsageError

if TYPE_CHECKING:
    from oomscope.bisect.run.slurm import ClusterSettings

Command = TypeVar("Command", bound=Callable[..., Any])

_LOCAL, _SLURM = "local", "slurm"


def cluster_options(command: Command) -> Command:
    """Add ``--executor`` and ``--slurm``; :func:`cluster_settings` takes their values."""
    options = (
        click.option(
            "--executor",
            type=click.Choice([_LOCAL, _SLURM]),
            default=_LOCAL,
            metavar="[local|slurm]",
            help="Where probes run: here (default), or as Slurm jobs, --jobs of them at once.",
        ),
        click.option(
            "--slurm",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of sbatch for each job, such as partition=gpu or gpus-per-node=1.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def cluster_settings(given: dict[str, Any]) -> ClusterSettings | None:
    """Take the options out of ``given`` and return where jobs go; None for this machine.

    Raises:
        UsageError: options for jobs without any, or ones that jobs cannot have.
    """
    from oomscope.bisect.run.slurm import ClusterSettings

    executor, words = given.pop("executor"), given.pop("slurm")
    if executor == _SLURM:
        return ClusterSettings.parse(words)
    if words:
        raise UsageError("--slurm without jobs", remedy="add --executor slurm, or leave it out")
    return None
