"""``oomscope gate report``: write a night that was measured before, for people and for CI systems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oomscope.cli.gate.options import OutputOptions, read_night
from oomscope.cli.gate.outputs import write_outputs
from oomscope.cli.options.common import json_option
from oomscope.cli.options.types import FILE
from oomscope.cli.terminal.output import refuse_one_place
from oomscope.errors import ExitCode


@click.command(short_help="Write the reports of an earlier night.")
@click.argument("night", type=FILE, metavar="NIGHT.json")
@OutputOptions.add
@json_option
def report_command(*, night: Path, as_json: bool, **written: Any) -> ExitCode:
    """Print the night that gate run --result wrote, and write it as gate run does; nothing is measured.

    The exit code is that of the night, so that a job which only reports fails as the night did.

    \b
    oomscope gate report night.json --html night.html --comment comment.md
    """
    outputs = OutputOptions.of(written)
    refuse_one_place(("NIGHT.json", night), *outputs.files)
    outputs.refuse_existing()
    return write_outputs(read_night(night), outputs, as_json=as_json)
