"""``oomscope doctor``: say what of this machine can be used, what each missing part disables, and what to do."""

from __future__ import annotations

import click

from oomscope.cli.options.common import json_option
from oomscope.cli.terminal.output import print_json, print_report
from oomscope.errors import ExitCode


@click.command(short_help="Check which parts of this machine can be used.")
@json_option
def doctor(*, as_json: bool) -> ExitCode:
    """Look at torch, CUDA, driver, cards, allocator settings, git, directories, host and extras.

    Each part that is missing is told with what it disables and what to do. Nothing is written, and no context is left
    on a card. The exit code is 0 where a probe can run, be it on a virtual card, and 5 where none can.

    \b
    oomscope doctor
    oomscope doctor --json
    """
    from oomscope.doctor.examine import examine

    diagnosis = examine()
    if as_json:
        print_json(diagnosis.to_json())
    else:
        from oomscope.report.doctor import doctor_report

        print_report(doctor_report(diagnosis))
    return diagnosis.exit_code
