"""``oomscope gate``: the group of the nightly gate's commands."""

from __future__ import annotations

import click

from oomscope.cli.gate.calibrate import calibrate_command
from oomscope.cli.gate.history import history_command
from oomscope.cli.gate.import_nights import import_command
from oomscope.cli.gate.report import report_command
from oomscope.cli.gate.run import run_command
from oomscope.cli.gate.update import update_command
from oomscope.cli.terminal.output import say
from oomscope.errors import ExitCode


@click.group(invoke_without_command=True, short_help="Compare a suite with its baseline, every night.")
@click.pass_context
def gate(ctx: click.Context) -> ExitCode:
    """Measure a suite of cases, and compare each with what was accepted for it.

    \b
    oomscope gate run ci/memory.yaml         compare with the baseline
    oomscope gate update ci/memory.yaml      accept what is new or better
    oomscope gate calibrate ci/memory.yaml   find out how much numbers vary
    oomscope gate report night.json          write a night for a CI system
    oomscope gate history                    show how the numbers went
    """
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
    return ExitCode.USAGE


for name, command in {
    "run": run_command,
    "update": update_command,
    "calibrate": calibrate_command,
    "report": report_command,
    "history": history_command,
    "import": import_command,
}.items():
    gate.add_command(command, name)
