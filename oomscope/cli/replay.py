"""``oomscope replay``: the allocations of a snapshot under its own allocator settings and under others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.options import (
    FILE,
    card_options,
    json_option,
    progress_options,
    snapshot_limits_options,
    torch_version_option,
)
from oomscope.cli.terminal.output import print_json, print_report
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode

if TYPE_CHECKING:
    from oomscope.snapshot.read.limits import Limits


@click.command(short_help="Replay a snapshot's allocations under other allocator settings.")
@click.argument("file", type=FILE, metavar="FILE")
@click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="CONF",
    help="Settings to try on top of the recorded ones, as in PYTORCH_ALLOC_CONF; repeatable.",
)
@card_options
@torch_version_option
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Which device (default: the busiest).")
@snapshot_limits_options
@progress_options
@json_option
def replay(
    *,
    file: Path,
    confs: tuple[str, ...],
    limit: str | None,
    gpu: str | None,
    non_torch: str | None,
    torch_version: str | None,
    device: int | None,
    limits: Limits,
    verbosity: str | None,
    as_json: bool,
) -> ExitCode:
    """Replay the allocations of a snapshot on an emulated allocator, under its own settings and under others.

    FILE is a memory snapshot with a trace, of any torch since 2.0. Without --conf the settings worth trying are tried.

    \b
    oomscope replay snapshot.pickle
    oomscope replay snapshot.pickle --conf expandable_segments:True --limit 80GiB
    """
    from oomscope.snapshot.read.load import load_snapshot
    from oomscope.snapshot.replay.replay_table import replay_file
    from oomscope.virtual.cards import named_card

    total, outside = named_card(limit, gpu, non_torch)
    with shown_progress(str(file), verbosity) as ticker:
        ticker.stage("read")
        snapshot = load_snapshot(file, limits=limits)
        table = replay_file(
            snapshot,
            device=device,
            confs=confs or None,
            limit=total,
            non_torch=outside,
            torch_version=torch_version,
            announce=ticker.stage,
        )
    if as_json:
        print_json({"file": str(file), **table.to_json()})
        return ExitCode.OK
    from oomscope.report.commands.replay import replay_report

    print_report(replay_report(table, title=str(file)))
    return ExitCode.OK
