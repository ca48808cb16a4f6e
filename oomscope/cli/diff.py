"""``oomscope diff``: what grew between two snapshots, by code line and category, at each side's own peak."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomscope.cli.options import (
    FILE,
    csv_option,
    force_option,
    html_option,
    json_options,
    progress_options,
    redact_option,
    snapshot_limits_options,
)
from oomscope.cli.terminal.output import DIFF_TABLES, Files, Form, late, print_document, print_report, tables_of
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode, gravest

if TYPE_CHECKING:
    from oomscope.report.commands.diff import By
    from oomscope.report.redact import Level
    from oomscope.snapshot.read.limits import Limits


@click.command(short_help="Show what grew from one snapshot to another.")
@click.argument("before", type=FILE, metavar="A")
@click.argument("after", type=FILE, metavar="B")
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Compare this device (default: all).")
@click.option("--phase", default="", metavar="NAME", help="Compare the peaks inside a phase, such as backward.")
@click.option("--by", type=click.Choice(["line", "category", "module", "size"]), help="Show this table only.")
@click.option("--top", type=click.IntRange(min=1), default=12, metavar="N", help="Rows of a table (default: 12).")
@html_option
@csv_option
@force_option
@redact_option
@snapshot_limits_options
@progress_options
@json_options
def diff_command(
    *,
    before: Path,
    after: Path,
    device: int | None,
    phase: str,
    by: By | None,
    top: int,
    html: Path | None,
    tables: Path | None,
    force: bool,
    redact: Level | None,
    limits: Limits,
    verbosity: str | None,
    form: Form | None,
) -> ExitCode:
    """Show what grew from snapshot A to snapshot B: by code line and category, at each side's own peak.

    The rows sum exactly to the difference. Lines that only moved are matched by file, function and order, even if
    line numbers or the folder of the program changed. Two folders with one file a rank are compared rank by rank.

    \b
    oomscope diff before.pickle after.pickle
    oomscope diff before.pickle after.pickle --phase backward --html diff.html
    """
    files = Files({"--html": html, "--csv": tables}, DIFF_TABLES)
    files.refuse(("what is read", before), ("what is read", after), force=force)
    from oomscope.snapshot.compare.diff import diff_paths

    with shown_progress(f"{before} and {after}", verbosity, is_all=False) as ticker:
        found = diff_paths(before, after, device=device, phase=phase, limits=limits, announce=ticker.stage)
    if redact is not None:
        from oomscope.report.redact import redacted

        found = redacted(found, redact)
    page = late("oomscope.report.html.pages:diff_page", found)
    lost = files.write({"--html": page, "--csv": partial(tables_of, DIFF_TABLES, found)})
    if form is not None:
        print_document(found, form)
    else:
        from oomscope.report.commands.diff import diff_report

        print_report(diff_report(found, by=by, shown=top))
    return gravest([ExitCode.OK, *lost])
