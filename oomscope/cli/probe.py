"""``oomscope probe``: measure one configuration, or the code of one checkout, and print the result."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.completion import complete_key
from oomscope.cli.options import (
    FILE,
    csv_option,
    devices_option,
    force_option,
    full_option,
    html_option,
    json_options,
    measurement_options,
    progress_options,
    settings_overrides,
)
from oomscope.cli.sources import ConfigSource, TargetOptions, config_source, source_options
from oomscope.cli.terminal.output import (
    PROBE_TABLES,
    Files,
    Form,
    keep_log,
    late,
    new_log,
    offer_more,
    print_document,
    print_report,
    remark,
    tables_of,
)
from oomscope.cli.terminal.progress import shown_progress
from oomscope.errors import ConfigError, ExitCode, InputError, UsageError, gravest
from oomscope.probe.git_bisect import UNTESTABLE, git_bisect_code
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    import pandas as pd

    from oomscope.probe.job import CheckoutTarget, ProbeJob
    from oomscope.probe.result import ProbeResult
    from oomscope.snapshot.explain.drawing import Drawing


_PROGRAM = "oomscope.program"
_LAST_LINES = 12
_WRONG_USAGE = re.compile(r"before .*status 2\)")
"""Failure of most programs that do not know one of their arguments."""


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


@click.command(cls=ProbeCommand, short_help="Measure a training program or a configuration.")
@click.argument(
    "words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]... [-- PROGRAM ARGS...]", shell_complete=complete_key
)
@source_options
@TargetOptions.add
@click.option("--repo", type=FILE, metavar="DIR", help="The checkout that these measure (default: .).")
@measurement_options
@devices_option
@click.option("--snapshot", type=FILE, metavar="FILE", help="Write the memory snapshot in PyTorch's own schema.")
@html_option
@full_option
@csv_option
@force_option
@click.option(
    "--confirm/--no-confirm",
    default=None,
    help="After an OOM by fragmentation run the whole program again under the settings that may cure it (default: on a "
    "virtual card yes, on a real one no).",
)
@click.option("--git-bisect", is_flag=True, help="Exit as git bisect run expects: 0 fits, 1 OOM, 125 untestable.")
@progress_options
@json_options
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
    full: bool,
    tables: Path | None,
    force: bool,
    confirm: bool | None,
    git_bisect: bool,
    verbosity: str | None,
    form: Form | None,
    **given: Any,
) -> int:
    """Run some training steps and report whether they fit, where the peak is, and the kind of OOM.

    PROGRAM is your training program, which runs unmodified (docs/probe.md). CFG.yaml is a configuration of the
    bundled transformer (docs/configuration.md); KEY=VALUE overrides one of its keys. --harness and --entry drive
    your own model step by step (docs/probe.md).

    \b
    oomscope probe --gpu h100-80gb -- python train.py --batch_size 8
    oomscope probe --preset llama3-8b --gpu h100-80gb
    oomscope probe --from megatron args.yaml --world-size 64
    oomscope probe cfg.yaml data.micro_batch_size=2 --limit 80GiB
    oomscope probe --harness harness.py --repo ~/my-project --limit 80GiB
    git bisect run oomscope probe cfg.yaml --git-bisect
    """
    from oomscope.probe.process import warm

    target = TargetOptions.of(given).checked(ctx.meta[_PROGRAM])
    _refuse_nothing(target.option or words or preset or dialect)
    if target.command is None:
        warm.prepare()
    source = config_source(words, preset, settings_overrides(given), dialect)
    files = Files({"--snapshot": snapshot, "--html": html, "--csv": tables}, PROBE_TABLES)
    files.refuse(("the configuration", source.path), ("--harness", target.harness), force=force)
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
    run = warm.run if log is None else partial(warm.run, log_path=log)
    draws = html is not None and (target.command is None or target.is_program)
    with shown_progress(plan.title, verbosity, is_all=False) as announce:
        result, drawing = _measured(
            replace(plan.job, confirm=confirm), plan.ranks, lambda job: run(job, announce), draws=draws
        )
    if result.snapshot:
        remark(f"Wrote {result.snapshot}")
    page = late("oomscope.report.html.pages:probe_page", result, title=plan.title, drawing=drawing)
    lost = files.write({"--html": page, "--csv": partial(_tables, result, plan.job)})
    if form is not None:
        print_document(result, form)
    else:
        _show(result, plan, full=full, log=log, git_bisect=git_bisect)
    if log is not None and log.is_file() and log.stat().st_size:
        remark(f"What the program printed: {log}")
    elif log is not None:
        log.unlink(missing_ok=True)
    if git_bisect:
        return git_bisect_code(result)
    if snapshot is not None and result.snapshot is None and result.outcome != "error":
        lost.append(ExitCode.OUTPUT_LOST)
    return gravest([_exit_code(result), *lost])


def _misplaced(ctx: click.Context) -> str:
    """Return the first option of this command among the words of the program; empty where there is none."""
    own = {name for each in ctx.command.params for name in each.opts if name.startswith("--")}
    return next((name for word in ctx.meta[_PROGRAM] if (name := word.partition("=")[0]) in own), "")


def _measured(
    job: ProbeJob, ranks: list[int], run: Callable[[ProbeJob], ProbeResult], *, draws: bool
) -> tuple[ProbeResult, Drawing | None]:
    """Return the result, and the pictures of its snapshot, which is temporary unless the job asks for one."""
    from oomscope.probe.process.tempdirs import tempdir
    from oomscope.probe.ranks import probe_ranks

    if not draws:
        return probe_ranks(job, ranks, run), None
    with tempdir(Path(tempfile.gettempdir()), "oomscope-page") as folder:
        path = job.snapshot_path or str(folder / "snapshot.pickle")
        result = probe_ranks(replace(job, snapshot_path=path), ranks, run)
        drawing = _drawing(result.snapshot) if result.snapshot else None
    return (result if job.snapshot_path else replace(result, snapshot=None)), drawing


def _drawing(snapshot: str) -> Drawing | None:
    """Return the pictures of a snapshot: those of the device that was measured; None where it cannot be read back."""
    from oomscope.snapshot.explain.analysis import analyse
    from oomscope.snapshot.explain.drawing import draw
    from oomscope.snapshot.read.load import load_snapshot

    try:
        analyses = analyse(load_snapshot(snapshot), file=snapshot)
    except InputError as error:
        remark(f"warning: the page has no pictures: {error}")
        return None
    return draw(max(analyses, key=lambda each: len(each.recorded)))


def _tables(result: ProbeResult, job: ProbeJob) -> dict[str, pd.DataFrame]:
    """Return the tables of a probe; ``events``, with lines as the result names them, needs its snapshot."""
    tables = tables_of([name for name in PROBE_TABLES if name != "events"], result)
    if result.snapshot is None:
        return tables
    from oomscope.probe.analysis.sites import site_rule
    from oomscope.report.exports import dataframes
    from oomscope.snapshot.read.load import load_snapshot

    recorded = load_snapshot(result.snapshot)
    trace = max(recorded.traces, key=len)  # a device that was not probed has no events
    return {**tables, "events": dataframes.events(trace, recorded.segments, choose=site_rule(job).site_of)}


def _show(result: ProbeResult, plan: Plan, *, full: bool, log: Path | None, git_bisect: bool) -> None:
    """Print the report, and where the target's output is; git bisect run would leave a file for each commit."""
    from oomscope.report.commands.probe import probe_report, probe_summary

    print_report((probe_report if full else probe_summary)(result, title=plan.title))
    if not full and result.peak:
        offer_more()
    output = result.failure.detail.strip() if result.failure else ""
    if output and log is not None:
        remark("What the program printed last:")
        for line in output.splitlines()[-_LAST_LINES:]:
            remark(f"  {line}")
    elif output and git_bisect:
        remark(f"What the target printed last: {output.splitlines()[-1]}")
    elif output:
        remark(f"What the target printed: {keep_log(output) or 'lost: no file can be written'}")
    misplaced = _misplaced(click.get_current_context())
    if misplaced and result.failure and _WRONG_USAGE.search(result.failure.message):
        remark(f"{misplaced} stands after '--', so the program got it: options of oomscope come before '--'")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One or more ranks to measure."""

    job: ProbeJob
    ranks: list[int]
    title: str
    warnings: tuple[str, ...] = ()


def _refuse_nothing(given: object) -> None:
    if not given:
        remedy = "name a YAML file, a preset with --preset, or a program after --"
        raise UsageError("no configuration given", remedy=remedy)


def plan_of(source: ConfigSource, *, target: TargetOptions, repo: Path | None, snapshot: Path | None) -> Plan:
    """Return the plan of a probe.

    Raises:
        UsageError: the options contradict each other.
        HarnessError: the harness, entry or command cannot be one.
        ConfigError: the configuration is wrong.
    """
    if target.option is None and repo is not None:
        raise UsageError(
            "--repo without --harness, --entry, --command or a program", remedy="name one, or leave --repo out"
        )
    checkout = repo or Path()
    chosen = target.target_at(str(checkout.absolute()))
    plan = _bundled_plan(source) if chosen is None else _checkout_plan(source, chosen, checkout)
    if snapshot is None:
        return plan
    if target.command is not None and not target.is_program:
        raise UsageError("a command that measures by itself and --snapshot", remedy="let the command itself write one")
    if len(plan.ranks) > 1:
        raise UsageError("--snapshot with several ranks", remedy="choose one with --rank N")
    return replace(plan, job=replace(plan.job, snapshot_path=str(snapshot.absolute())))


def _bundled_plan(source: ConfigSource) -> Plan:
    from oomscope.probe.job import bundled_job
    from oomscope.probe.machine.checks import check_card
    from oomscope.probe.ranks import chosen_ranks

    loaded = source.load()
    check_card(loaded)
    ranks = chosen_ranks(loaded.config.probe.rank, loaded.config)
    warnings = (*loaded.remarks, *map(str, loaded.warnings))
    return Plan(job=bundled_job(loaded.config), ranks=ranks, title=source.title, warnings=warnings)


def _checkout_plan(source: ConfigSource, target: CheckoutTarget, repo: Path) -> Plan:
    from oomscope.probe.job import ProgramTarget, checkout_job
    from oomscope.probe.ranks import chosen_ranks
    from oomscope.probe.targets.recipes import check_target

    if source.path or source.preset:
        option, *_ = target.words()
        raise UsageError(f"both {option} and {source.title}", remedy="your own code brings its own model: name one")
    check_target(target)
    if not repo.is_dir():
        what = "is no directory" if repo.exists() else "no such checkout"
        raise UsageError(what, where=str(repo), remedy="give --repo the directory of the checkout")
    is_program = isinstance(target, ProgramTarget)
    settings = harness_settings(source.overrides, starts_world=is_program)
    title = target.title if repo == Path() else f"{target.title} in {repo.absolute().name}"
    rank = settings.probe.rank
    if isinstance(target, ProgramTarget) and settings.probe.world_size is None:
        target = replace(target, rank=rank if isinstance(rank, int) else None)
        return Plan(job=checkout_job(target, settings), ranks=[0], title=title)
    if is_program and (settings.probe.world_size or 1) > 1 and settings.probe.backend == "cuda":
        raise UsageError(
            "--world-size with a program on a real card",
            remedy="a rank alone needs a virtual card: give --backend virtual, or start the world with torchrun",
        )
    return Plan(job=checkout_job(target, settings), ranks=chosen_ranks(rank, settings), title=title)


def _exit_code(result: ProbeResult) -> ExitCode:
    if result.outcome != "error":
        return ExitCode.OK if result.outcome == "fits" else ExitCode.OOM
    codes = {"unfit": ExitCode.MACHINE_UNFIT, "usage": ExitCode.USAGE, "internal": ExitCode.INTERNAL}
    return codes.get(result.failure.kind if result.failure else "", ExitCode.TARGET_FAILED)
