"""``oomscope sweep``: probe every combination of some keys' values, side by side, and print the grid."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.options import json_option, measurement_options, settings_overrides
from oomscope.cli.output import print_json, print_report, refuse_one_place, remark
from oomscope.cli.source import config_source, refuse_world_size, source_options
from oomscope.cli.tables import SWEEP_TABLES, csv_option, refuse_existing_tables, table_files, write_sweep_tables
from oomscope.cli.variants import kept_probe, load_with
from oomscope.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from oomscope.probe.sweep import Axis, Sweep


@click.command(short_help="Probe a grid of configurations.")
@click.argument("words", nargs=-1, metavar="[CFG.yaml] KEY=VALUE,VALUE... [KEY=VALUE]...")
@source_options
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Probes at once.")
@click.option("--fresh", is_flag=True, help="Probe anew what was measured before.")
@measurement_options
@csv_option
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
@json_option
def sweep(
    *,
    words: tuple[str, ...],
    preset: str | None,
    dialect: str | None,
    jobs: int,
    fresh: bool,
    tables: Path | None,
    force: bool,
    quiet: bool,
    as_json: bool,
    **settings: Any,
) -> ExitCode:
    """Measure every combination of the values that follow a key; KEY=VALUE with one value holds for all of them.

    Beside keys there are two short names: recompute (none, selective, full, uniform:N, block:N, or modules joined by
    +) and offload (none, layers:N, optimizer:FRACTION, or modules joined by +). Ctrl-C prints what is there.

    \b
    oomscope sweep cfg.yaml recompute=none,full offload=none,optimizer
    oomscope sweep --preset llama3-8b data.micro_batch_size=1,2,4 --jobs 2
    """
    refuse_world_size(settings["world_size"], dialect)
    from oomscope.probe import sweep as grid

    axes, others = _axes(words)
    source = config_source(others, preset, settings_overrides(settings), dialect)
    refuse_one_place(("the configuration", source.path), *table_files(tables, SWEEP_TABLES))
    refuse_existing_tables(tables, SWEEP_TABLES, force=force)

    def announce(done: int, total: int, values: tuple[str, ...], variant: Any) -> None:
        if not quiet:
            from oomscope.report.sweep_text import row_text

            remark(f"{done} of {total}: {row_text(axes, values, variant)}")

    for line in source.load(enforce=False).remarks:
        remark(line)
    found = grid.sweep(load_with(source), axes, probe=kept_probe(fresh=fresh), jobs=jobs, announce=announce)
    if as_json:
        print_json(found.to_json())
    else:
        from oomscope.report.sweep_text import sweep_report

        print_report(sweep_report(found, title=source.title))
    if tables is not None:
        write_sweep_tables(tables, found)
    return _exit_code(found)


def _axes(words: tuple[str, ...]) -> tuple[list[Axis], list[str]]:
    """Return what is varied, and the other words.

    Raises:
        UsageError: nothing is varied.
    """
    from oomscope.probe.shorthand import SHORTHANDS
    from oomscope.probe.sweep import Axis

    axes, others = [], []
    for word in words:
        name, equals, _ = word.partition("=")
        axis = Axis.parse(word) if equals and ("." in name or name in SHORTHANDS) else None
        if axis is not None and (len(axis.values) > 1 or name in SHORTHANDS):
            axes.append(axis)
        else:
            others.append(word)
    if not axes:
        raise UsageError("nothing to vary", remedy="give a key several values, such as recompute=none,selective,full")
    return axes, others


def _exit_code(found: Sweep) -> ExitCode:
    if found.interrupted:
        return ExitCode.INTERRUPTED
    measured = any(row.variant.outcome in {"fits", "oom"} for row in found.rows)
    return ExitCode.OK if measured else ExitCode.TARGET_FAILED
