"""The outputs of a night, and ``oomscope gate report``, which writes them again.

The exit code is known before anything is written. Each output is attempted on its own: one that fails leaves the others
and the exit code of a failing night as they are; a green night ends with the code of the failure.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.gate.options import OutputOptions, read_night
from oomscope.cli.options import FILE, json_options
from oomscope.cli.terminal.output import Form, late, print_document, print_report, remark, written
from oomscope.cli.terminal.streams import OutputError, ReaderGoneError
from oomscope.errors import ExitCode, InputError, gravest
from oomscope.files import real_path

if TYPE_CHECKING:
    from oomscope.gate.ledger.ledger import Ledger
    from oomscope.gate.night.result import GateResult

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
RENDERERS: dict[str, str] = {
    "--junit": "oomscope.report.ci.junit:junit_document",
    "--html": "oomscope.report.html.pages:night_page",
    "--step-summary": "oomscope.report.ci.github:summary",
    "--comment": "oomscope.report.ci.github:comment",
}
"""Option to the function that renders its file, imported when it is needed."""


@click.command(short_help="Write the reports of an earlier night.")
@click.argument("night", type=FILE, metavar="NIGHT.json")
@OutputOptions.add
@json_options
def report_command(*, night: Path, form: Form | None, **given: Any) -> ExitCode:
    """Print the night that gate run --result wrote, and write it as gate run does; nothing is measured.

    The exit code is that of the night, so that a job which only reports fails as the night did.

    \b
    oomscope gate report night.json --html night.html --comment comment.md
    """
    options = OutputOptions.of(given)
    options.places.refuse(("NIGHT.json", night), force=options.force)
    return write_outputs(read_night(night), options, form=form)


def write_outputs(
    night: GateResult, options: OutputOptions, *, form: Form | None, ledger: Ledger | None = None
) -> ExitCode:
    """Keep, write and print ``night``, and return the exit code of the command.

    Args:
        night: the result.
        options: what is written where.
        form: the document to print in place of the report.
        ledger: None keeps no night.
    """
    try:
        lost = write_files(night, options, ledger)
        lost += written(partial(_print, night, form=form))
        if options.annotations:
            lost += written(partial(_annotate, night))
        if options.step_summary is None and (place := os.environ.get(SUMMARY_VARIABLE)):
            written(partial(_append_summary, night, Path(place)))  # nobody asked for it
    except (OutputError, ReaderGoneError) as error:  # raised again when the streams are closed, with this code
        error.exit_code = night.exit_code or error.exit_code
        raise
    return night.exit_code or gravest(lost)


def write_files(
    night: GateResult, options: OutputOptions, ledger: Ledger | None, *, is_announced: bool = True
) -> list[ExitCode]:
    """Keep ``night`` in the ledger and write its files; return the exit codes of failed writes."""
    lost = [] if ledger is None else written(partial(ledger.put, night))
    makes = {"--result": lambda: json.dumps(night.to_json(), allow_nan=False)}
    makes |= {option: late(renderer, night) for option, renderer in RENDERERS.items()}
    return lost + options.places.write(makes, is_announced=is_announced)


def _print(night: GateResult, *, form: Form | None) -> None:
    if form is not None:
        print_document(night, form)
    else:
        from oomscope.report.commands.gate import gate_report
        from oomscope.report.commands.gate_sentences import Commands

        print_report(gate_report(night, Commands.seen_from(night, real_path(Path()))))


def _annotate(night: GateResult) -> None:
    from oomscope.report.ci.github import annotation_commands

    for command in annotation_commands(night):
        remark(command)


def _append_summary(night: GateResult, path: Path) -> None:
    """Append to the summary of the step, to which its other commands write as well, as much as fits."""
    from oomscope.report.ci.github import SUMMARY_ROOM, summary

    used = path.stat().st_size if path.exists() else 0
    text = summary(night, SUMMARY_ROOM - used)
    if not text:
        raise InputError("the summary of this step is full", where=str(path), remedy="give the gate a step of its own")
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}" if used else text)
    except OSError as error:
        what = f"cannot write: {error.strerror}"
        raise InputError(what, where=str(path), remedy="choose another place") from None
