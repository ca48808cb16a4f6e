"""``oomscope record``: run a training command whose processes keep snapshots of their CUDA allocators."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import get_args

import click

from oomscope.capture import names
from oomscope.capture.arming import variables
from oomscope.capture.settings import MAX_ENTRIES, Settings, Stacks
from oomscope.capture.singleton import PYTHON
from oomscope.cli.options import json_option
from oomscope.cli.terminal.output import print_json, remark
from oomscope.errors import ExitCode, UsageError
from oomscope.virtual.loading import has_gpu
from oomscope.virtual.settings import VARIABLE

SCHEMA_VERSION = 1


@click.command(
    short_help="Run a training job and write memory snapshots of it.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--out", default="snap-{rank}.pickle", metavar="FILE", show_default=True, help="Name of each snapshot.")
@click.option(
    "--stacks", type=click.Choice(get_args(Stacks)), default="python", show_default=True, help="Frames to keep."
)
@click.option(
    "--max-entries",
    type=click.IntRange(min=1),
    default=MAX_ENTRIES,
    metavar="N",
    show_default=True,
    help="Size of the ring of events.",
)
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Write a snapshot after each N steps as well.")
@click.option("--watch", is_flag=True, help="Report live memory that keeps growing from step to step.")
@click.option("--force", is_flag=True, help="Replace snapshots that exist, instead of numbering.")
@click.option("--quiet", is_flag=True, help="Print warnings only.")
@json_option
def record(
    *,
    command: tuple[str, ...],
    out: str,
    stacks: Stacks,
    max_entries: int,
    every: int | None,
    watch: bool,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run COMMAND, such as `torchrun train.py`; each of its processes that uses CUDA writes snapshots.

    The first out-of-memory error writes snap-0.oom.pickle and is explained in eight lines before the process ends;
    the end writes snap-0.pickle. Names may have the fields {rank}, {time}, {host} and {pid}, and end in .gz or .zst.
    COMMAND replaces oomscope, so its exit code is returned. --json runs nothing and prints the environment variables
    that make a program record.
    """
    names.check(out)
    path = names.anchored(names.fill_time(out, datetime.now(UTC)))
    settings = Settings(
        path=path, max_entries=max_entries, stacks=stacks, every=every, force=force, quiet=quiet, watch=watch
    )
    added = variables(settings, os.environ) | {PYTHON: sys.executable}
    if as_json:
        print_json({"schema_version": SCHEMA_VERSION, "environment": added})
        return ExitCode.OK
    if not command:
        raise UsageError("no command to run", remedy="say oomscope record -- torchrun train.py")
    if not (quiet or has_gpu() or any(name.startswith(VARIABLE) for name in os.environ)):
        remark("oomscope record: no NVIDIA GPU on this machine; oomscope probe -- COMMAND measures on a virtual card")
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, dict(os.environ) | added)  # noqa: S606 - a list, no shell
    except OSError as error:
        remedy = "give a program, such as python train.py"
        raise UsageError(f"cannot be run ({error.strerror})", where=command[0], remedy=remedy) from error
