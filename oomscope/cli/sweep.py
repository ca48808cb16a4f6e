"""``oomscope sweep``: probe every combination of some keys' values, side by side, and print the grid."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.completion import complete_key
from oomscope.cli.options import (
    FILE,
    csv_option,
    force_option,
    fresh_option,
    jobs_option,
    json_option,
    progress_options,
    settings_overrides,
    variant_options,
)
from oomscope.cli.sources import config_source, kept_probe, load_with, refuse_world_size, source_options
from oomscope.cli.terminal.hints import nearest
from oomscope.cli.terminal.output import SWEEP_TABLES, Files, late, print_json, print_report, remark, tables_of
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ExitCode, UsageError, gravest
from oomscope.printable import quoted

if TYPE_CHECKING:
    from oomscope.probe.tuning.sweep import Axis, Sweep


@click.command(short_help="Probe a grid of configurations.")
@click.argument("words", nargs=-1, metavar="[CFG.yaml] KEY=VALUE,VALUE... [KEY=VALUE]...", shell_complete=complete_key)
@source_options
@jobs_option
@fresh_option
@variant_options
@click.option("--html", type=FILE, metavar="FILE", help="Write the grid as one offline HTML page, with pictures.")
@click.option("--png", type=FILE, metavar="FILE", help="Write the grid as a picture (plots extra).")
@csv_option
@force_option
@progress_options
@json_option
def sweep(
    *,
    words: tuple[str, ...],
    preset: str | None,
    dialect: str | None,
    jobs: int,
    fresh: bool,
    html: Path | None,
    png: Path | None,
    tables: Path | None,
    force: bool,
    verbosity: str | None,
    as_json: bool,
    **settings: Any,
) -> ExitCode:
    """Measure every combination of the values that follow a key; KEY=VALUE with one value applies to all.

    Two short names stand for several keys: recompute (none, selective, full, uniform:N, block:N, or modules joined by
    +) and offload (none, layers:N, optimizer:FRACTION, or modules joined by +). Ctrl-C prints what
    was measured.

    \b
    oomscope sweep cfg.yaml recompute=none,full offload=none,optimizer
    oomscope sweep --preset llama3-8b data.micro_batch_size=1,2,4 --jobs 2
    oomscope sweep cfg.yaml recompute=none,mlp,full --html grid.html
    """
    refuse_world_size(settings["world_size"], dialect)
    from oomscope.probe.machine.backends import refuse_without_card
    from oomscope.probe.tuning import sweep as grid

    axes, others = _axes(words)
    source = config_source(others, preset, settings_overrides(settings), dialect)
    files = Files({"--html": html, "--png": png, "--csv": tables}, SWEEP_TABLES)
    files.refuse(("the configuration", source.path), force=force)

    loaded = source.load(enforce=False)
    for line in loaded.remarks:
        remark(line)
    refuse_without_card(loaded.config.probe.backend)
    with shown_progress(source.title, verbosity) as ticker:
        ticker.stage("combination", 0, prod(len(axis.values) for axis in axes))

        def announce(done: int, total: int, values: tuple[str, ...], variant: Any) -> None:
            from oomscope.report.commands.sweep import row_text

            ticker.line(f"{done} of {total}: {row_text(axes, values, variant)}")
            ticker.stage("combination", done, total)

        found = grid.sweep(load_with(source), axes, probe=kept_probe(fresh=fresh), jobs=jobs, announce=announce)
    makes = {"--html": late("oomscope.report.html.pages:sweep_page", found, title=source.title)}
    if any(row.variant.requested_bytes is not None for row in found.rows):
        makes["--png"] = late("oomscope.report.charts.pictures:sweep_picture", found, title=source.title)
    lost = files.write({**makes, "--csv": partial(tables_of, SWEEP_TABLES, found)})
    if as_json:
        print_json(found.to_json())
    else:
        from oomscope.report.commands.sweep import sweep_report

        print_report(sweep_report(found, title=source.title))
    return gravest([_exit_code(found), *lost])


def _axes(words: tuple[str, ...]) -> tuple[list[Axis], list[str]]:
    """Return what is varied, and the other words."""
    from oomscope.probe.tuning.shorthand import SHORTHANDS
    from oomscope.probe.tuning.sweep import Axis

    axes, others = [], []
    for word in words:
        name, equals, _ = word.partition("=")
        axis = Axis.parse(word) if equals and ("." in name or name in SHORTHANDS) else None
        if axis is not None and (len(axis.values) > 1 or name in SHORTHANDS):
            axes.append(axis)
        else:
            others.append(word)
    names = (word.partition("=")[0] for word in others if "," in word)
    meant = next(((name, near) for name in names if "." not in name and (near := nearest(name, SHORTHANDS))), None)
    if meant is not None:
        raise UsageError(f"nothing is called {quoted(meant[0])}", remedy=f"did you mean {meant[1]}?")
    if not axes:
        raise UsageError("nothing to vary", remedy="give a key several values, such as recompute=none,selective,full")
    return axes, others


def _exit_code(found: Sweep) -> ExitCode:
    if found.interrupted:
        return ExitCode.INTERRUPTED
    measured = any(row.variant.outcome in {"fits", "oom"} for row in found.rows)
    return ExitCode.OK if measured else ExitCode.TARGET_FAILED
