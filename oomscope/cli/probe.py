"""``oomscope probe``: measure one configuration, or the code of one checkout, and print what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomscope.cli.options.common import (
    csv_option,
    full_option,
    json_option,
    measurement_options,
    progress_options,
    settings_overrides,
)
from oomscope.cli.options.completion import complete_key, complete_preset
from oomscope.cli.options.source import ConfigSource, config_source, dialect_option
from oomscope.cli.options.targets import TargetOptions
from oomscope.cli.options.types import FILE
from oomscope.cli.terminal.output import (
    keep_log,
    may_replace,
    new_log,
    offer_more,
    print_json,
    print_report,
    remark,
)
from oomscope.cli.terminal.output_files import PROBE_TABLES, Files, probe_tables
from oomscope.cli.terminal.progress import Verbosity, shown_progress, verbosity_of
from oomscope.errors import ConfigError, ExitCode, UsageError, gravest
from oomscope.probe.git_bisect import UNTESTABLE, git_bisect_code
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    from oomscope.probe.job import CheckoutTarget, ProbeJob
    from oomscope.probe.result import ErrorKind, ProbeResult


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


@click.command(cls=ProbeCommand, short_help="Measure a training program or a configuration.")
@click.argument(
    "words", nargs=-1, metavar="[CFG.yaml] [KEY=VALUE]... [-- PROGRAM ARGS...]", shell_complete=complete_key
)
@click.option(
    "--preset", metavar="NAME", shell_complete=complete_preset, help=f"Take a preset instead of a file: {PRESETS}."
)
@dialect_option
@TargetOptions.add
@click.option("--repo", type=FILE, metavar="DIR", help="The checkout in which these are measured (default: .).")
@measurement_options
@click.option("--snapshot", type=FILE, metavar="FILE", help="Write the memory snapshot in PyTorch's own schema.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the report as one offline HTML page.")
@full_option
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
    full: bool,
    tables: Path | None,
    force: bool,
    confirm: bool | None,
    git_bisect: bool,
    verbosity: str | None,
    as_json: bool,
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
    target = TargetOptions.of(given, program=ctx.meta[_PROGRAM])
    source = config_source(words, preset, settings_overrides(given), dialect)
    files = Files(html=html, tables=tables, names=PROBE_TABLES, snapshot=snapshot)
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
    result = _measure(replace(plan, job=replace(plan.job, confirm=confirm)), verbosity_of(verbosity), log)
    if result.snapshot:
        remark(f"Wrote {result.snapshot}")

    def page() -> str:
        from oomscope.report.html.pages import probe_page

        return probe_page(result, title=plan.title)

    lost = files.write(page=page, tables=lambda: probe_tables(result, plan.job))
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, plan, full=full, keeps_log=not git_bisect, is_logged=log is not None)
    if log is not None:
        _name_log(log)
    if git_bisect:
        return git_bisect_code(result)
    if snapshot is not None and result.snapshot is None and result.outcome != "error":
        lost.append(ExitCode.OUTPUT_LOST)
    return gravest([probe_exit_code(result), *lost])


def _measure(plan: Plan, verbosity: Verbosity, log: Path | None) -> ProbeResult:
    from oomscope.probe.process import launch, warm
    from oomscope.probe.ranks import probe_ranks

    run = warm.run if len(plan.ranks) > 1 else launch.run
    if log is not None:
        run = partial(run, log_path=log)
    with shown_progress(plan.title, verbosity, is_all=False) as announce:
        return probe_ranks(plan.job, plan.ranks, lambda job: run(job, announce))


def _name_log(log: Path) -> None:
    """Say where the program's output is; the file of a program that printed nothing is removed."""
    if log.is_file() and log.stat().st_size:
        remark(f"What the program printed: {log}")
    else:
        log.unlink(missing_ok=True)


def _show(result: ProbeResult, plan: Plan, *, full: bool, keeps_log: bool, is_logged: bool) -> None:
    """Print the report, and where the target's output is; git bisect run would leave a file for each commit."""
    from oomscope.report.probe import probe_report, probe_summary

    print_report((probe_report if full else probe_summary)(result, title=plan.title))
    if not full and result.peak:
        offer_more()
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One or more ranks to measure."""

    job: ProbeJob
    ranks: list[int]
    title: str
    warnings: tuple[str, ...] = ()


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
    place = str(snapshot.absolute())
    return replace(plan, job=replace(plan.job, snapshot_path=place, snapshot_force=may_replace(snapshot)))


def _bundled_plan(source: ConfigSource) -> Plan:
    from oomscope.probe.job import bundled_job
    from oomscope.probe.machine.checks import check_card
    from oomscope.probe.ranks import chosen_ranks

    loaded = source.load()
    check_card(loaded)
    return Plan(
        job=bundled_job(loaded.config),
        ranks=chosen_ranks(loaded.config.probe.rank, loaded.config),
        title=source.title,
        warnings=(*loaded.remarks, *(str(warning) for warning in loaded.warnings)),
    )


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
            remedy="only a virtual card plays a rank: --backend virtual, or start the world with torchrun",
        )
    return Plan(job=checkout_job(target, settings), ranks=chosen_ranks(rank, settings), title=title)


_FAILURES: dict[ErrorKind | None, ExitCode] = {
    "unfit": ExitCode.MACHINE_UNFIT,
    "usage": ExitCode.USAGE,
    "internal": ExitCode.INTERNAL,
}
"""Failures that are not the target's."""


def probe_exit_code(result: ProbeResult) -> ExitCode:
    """Return what ``oomscope probe`` exits with."""
    if result.outcome == "fits":
        return ExitCode.OK
    if result.outcome == "oom":
        return ExitCode.OOM
    kind = result.failure.kind if result.failure else None
    return _FAILURES.get(kind, ExitCode.TARGET_FAILED)
