"""``oomscope probe``: measure one configuration, or the code of one checkout, and print what came of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.exit_codes import probe_exit_code
from oomscope.cli.options import FILE, json_option, measurement_options, settings_overrides
from oomscope.cli.options_progress import Telling, progress_options, telling_of
from oomscope.cli.options_targets import TargetOptions, target_options
from oomscope.cli.output import (
    keep_log,
    new_log,
    print_json,
    print_report,
    refuse_existing,
    refuse_one_place,
    remark,
    write_file,
)
from oomscope.cli.plan import Plan, plan_of
from oomscope.cli.progress import shown_progress
from oomscope.cli.source import complete_preset, config_source, dialect_option
from oomscope.cli.tables import PROBE_TABLES, csv_option, refuse_existing_tables, table_files, write_probe_tables
from oomscope.cli.written import written
from oomscope.errors import ConfigError, ExitCode, UsageError, gravest
from oomscope.probe.git_bisect import UNTESTABLE, git_bisect_code

if TYPE_CHECKING:
    from oomscope.probe.result import ProbeResult


PRESETS = "gpt-tiny, llama3-8b, llama3-70b or qwen3-30b-a3b-shaped"
_PROGRAM = "oomscope.program"
_LAST_LINES = 12


class ProbeCommand(click.Command):
    """A command whose words after ``--`` are a program and its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the program off ``args``, which click would mix with the other words."""
        own, dashes, program = list(args), "--" in args, []
        if dashes:
            place = args.index("--")
            own, program = args[:place], args[place + 1 :]
            if not program:
                raise UsageError("no program after '--'", remedy="write oomscope probe -- python train.py")
        ctx.meta[_PROGRAM] = tuple(program)
        return super().parse_args(ctx, own)


@click.command(cls=ProbeCommand, short_help="Measure one configuration, or your own code.")
@click.argument("words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]... [-- PROGRAM ARGS...]")
@click.option(
    "--preset", metavar="NAME", shell_complete=complete_preset, help=f"Take a preset instead of a file: {PRESETS}."
)
@dialect_option
@target_options
@click.option("--repo", type=FILE, metavar="DIR", help="The checkout in which these are measured (default: .).")
@measurement_options
@click.option("--snapshot", type=FILE, metavar="FILE", help="Write the memory snapshot in PyTorch's own schema.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@csv_option
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option(
    "--confirm/--no-confirm",
    default=None,
    help="After an OOM by fragmentation run the whole program again under the settings that may cure it (default: on a "
    "virtual card yes, on a real one no).",
)
@click.option("--git-bisect", is_flag=True, help="Exit as git bisect run expects: 0 fits, 1 OOM, 125 untestable.")
@progress_options
@json_option
@click.pass_context
def probe(
    ctx: click.Context,
    /,
    *,
    words: tuple[str, ...],
    preset: str | None,
    dialect: str | None,
    repo: Path | None,
    snapshot: Path | None,
    html: Path | None,
    tables: Path | None,
    force: bool,
    confirm: bool | None,
    git_bisect: bool,
    telling: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Run some training steps and say whether they fit, where the peak sits, and what kind of OOM it is.

    PROGRAM is your training program, which is run as it is (docs/programs.md). CFG.yaml is a configuration
    (docs/configuration.md); KEY=VALUE overrides one of its keys. --harness and --entry measure your own code by
    steps (docs/harness.md).

    \b
    oomscope probe --gpu h100-80gb -- python train.py --batch_size 8
    oomscope probe --preset llama3-8b --gpu h100-80gb
    oomscope probe --from megatron args.yaml --world-size 64
    oomscope probe cfg.yaml data.micro_batch_size=2 --limit 80GiB
    oomscope probe --harness harness.py --repo ~/my-project --limit 80GiB
    git bisect run oomscope probe cfg.yaml --git-bisect
    """
    target = TargetOptions.of(given, program=ctx.meta[_PROGRAM])
    source = config_source(words, preset, settings_overrides(given), dialect)
    read = [("the configuration", source.path), ("--harness", target.harness)]
    written = [("--snapshot", snapshot), ("--html", html), *table_files(tables, PROBE_TABLES)]
    refuse_one_place(*read, *written)
    refuse_existing(snapshot, force=force, option="--snapshot")
    refuse_existing(html, force=force, option="--html")
    refuse_existing_tables(tables, PROBE_TABLES, force=force)
    try:
        plan = plan_of(source, target=target, repo=repo, snapshot=snapshot)
    except ConfigError as error:
        if not (git_bisect and source.is_blamed_by(error)):
            raise
        remark(f"untestable: {error}")
        return UNTESTABLE
    for warning in plan.warnings:
        remark(f"warning: {warning}")
    confirm = False if git_bisect and confirm is None else confirm  # its answer is an exit code
    log = None if git_bisect or not target.is_program else new_log()
    result = _measure(replace(plan, job=replace(plan.job, confirm=confirm)), telling_of(telling), log)
    lost = _write_files(result, plan, html=html, tables=tables)
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, plan, keeps_log=not git_bisect, is_logged=log is not None)
    if log is not None:
        _name_log(log)
    if git_bisect:
        return git_bisect_code(result)
    if snapshot is not None and result.snapshot is None and result.outcome != "error":
        lost.append(ExitCode.OUTPUT_LOST)
    return gravest([probe_exit_code(result), *lost])


def _measure(plan: Plan, telling: Telling, log: Path | None) -> ProbeResult:
    from oomscope.probe.process import launch, warm
    from oomscope.probe.ranks import probe_ranks

    run = warm.run if len(plan.ranks) > 1 else launch.run
    if log is not None:
        run = partial(run, log_path=log)
    with shown_progress(plan.title, telling, is_all=False) as announce:
        return probe_ranks(plan.job, plan.ranks, lambda job: run(job, announce))


def _name_log(log: Path) -> None:
    """Say where the program's output is; the file of a program that printed nothing is removed."""
    if log.is_file() and log.stat().st_size:
        remark(f"What the program printed: {log}")
    else:
        log.unlink(missing_ok=True)


def _write_files(result: ProbeResult, plan: Plan, *, html: Path | None, tables: Path | None) -> list[ExitCode]:
    """Write what was asked for, before anything is printed: the reader of the report may leave at any line.

    A file that cannot be written takes neither the report nor another file with it: it is told, and its code returned.
    """
    lost: list[ExitCode] = []
    if html is not None:
        lost += written(lambda: _write_page(html, result, plan.title))
    if result.snapshot:
        remark(f"Wrote {result.snapshot}")
    if tables is not None:
        lost += written(lambda: write_probe_tables(tables, result, plan.job))
    return lost


def _write_page(path: Path, result: ProbeResult, title: str) -> None:
    from oomscope.report.html.probe import probe_page

    write_file(path, probe_page(result, title=title))


def _show(result: ProbeResult, plan: Plan, *, keeps_log: bool, is_logged: bool) -> None:
    """Print the report, and where the target's own words are; git bisect run would leave a file for each commit."""
    from oomscope.report.text.probe import probe_report

    print_report(probe_report(result, title=plan.title))
    said = result.failure.detail.strip() if result.failure else ""
    if said and is_logged:
        remark("What the program printed last:")
        for line in said.splitlines()[-_LAST_LINES:]:
            remark(f"  {line}")
    elif said and not keeps_log:
        remark(f"What the target said last: {said.splitlines()[-1]}")
    elif said:
        kept = keep_log(said)
        remark(f"What the target said: {kept or 'lost, for no file can be written'}")
