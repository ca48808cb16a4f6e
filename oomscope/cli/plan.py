"""What a probe command is going to measure: the job, the ranks and the name under which it is reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.options_targets import TargetOptions
from oomscope.cli.output import may_replace
from oomscope.cli.source import ConfigSource
from oomscope.errors import UsageError
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    from oomscope.probe.job import CheckoutTarget, ProbeJob


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
    settings = harness_settings(source.overrides)
    title = f"{repo.absolute().name} through {target.title}"
    if isinstance(target, ProgramTarget) and (settings.probe.world_size or 1) > 1 and settings.probe.backend == "cuda":
        raise UsageError(
            "--world-size with a program on a real card",
            remedy="only a virtual card plays a rank: --backend virtual, or start the world with torchrun",
        )
    return Plan(job=checkout_job(target, settings), ranks=chosen_ranks(settings.probe.rank, settings), title=title)
