"""``oomscope record``: run a training command whose processes keep snapshots of their CUDA allocators."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import get_args

import click

from oomscope.capture import names
from oomscope.capture.arming import environment_for
from oomscope.capture.settings import MAX_ENTRIES, Settings, Stacks
from oomscope.errors import UsageError


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...", required=True)
@click.option("--out", default="snap-{rank}.pickle", metavar="FILE", show_default=True, help="Name of each snapshot.")
@click.option(
    "--stacks", type=click.Choice(get_args(Stacks)), default="python", show_default=True, help="What to keep."
)
@click.option("--max-entries", type=int, default=MAX_ENTRIES, show_default=True, help="Events kept for each device.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Write a snapshot after each N steps as well.")
@click.option("--force", is_flag=True, help="Replace snapshots that exist, instead of numbering.")
@click.option("--quiet", is_flag=True, help="Print warnings only.")
def record(
    *, command: tuple[str, ...], out: str, stacks: Stacks, max_entries: int, every: int | None, force: bool, quiet: bool
) -> None:
    """Run COMMAND, such as `torchrun train.py`; each of its processes that uses CUDA writes a snapshot.

    At the first out-of-memory error it is snap-0.oom.pickle, at the end snap-0.pickle. Names may have the fields
    {rank}, {time}, {host} and {pid}, and end in .gz or .zst. COMMAND takes the place of oomscope: its exit code is
    what comes back.
    """
    path = names.anchored(names.fill_time(out, datetime.now(UTC)))
    settings = Settings(path=path, max_entries=max_entries, stacks=stacks, every=every, force=force, quiet=quiet)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment_for(settings, os.environ))  # noqa: S606 - a list, no shell
    except OSError as error:
        raise UsageError(
            f"cannot be run ({error.strerror})", where=command[0], remedy="give a program, such as python train.py"
        ) from error
