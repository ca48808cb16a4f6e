"""``oomscope gate``: the group of the nightly gate's commands."""

from __future__ import annotations

import click

from oomscope.cli.options import LazyGroup
from oomscope.cli.terminal.output import say
from oomscope.errors import ExitCode

COMMANDS = {
    "run": ("oomscope.cli.gate.run:run_command", "Compare a suite with its baseline."),
    "update": ("oomscope.cli.gate.update:update_command", "Accept what is new or better."),
    "calibrate": (
        "oomscope.cli.gate.update:calibrate_command",
        "Set bands from the spread of repeated measurements.",
    ),
    "report": ("oomscope.cli.gate.outputs:report_command", "Write the reports of an earlier night."),
    "history": ("oomscope.cli.gate.history:history_command", "Show the trend of each case."),
    "import": ("oomscope.cli.gate.history:import_command", "Add JSON results to a ledger."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    invoke_without_command=True,
    short_help="Compare a suite with its baseline, every night.",
)
@click.pass_context
def gate(ctx: click.Context) -> ExitCode:
    """Measure a suite of cases, and compare each with its accepted values.

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
