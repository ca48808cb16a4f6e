"""What a probe command is going to measure: the job, the ranks and the name under which it is reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.cli.source import ConfigSource
from oomscope.errors import UsageError
from oomscope.probe.harness_settings import harness_settings

if TYPE_CHECKING:
    from oomscope.probe.job import ProbeJob


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One or more ranks to measure."""

    job: ProbeJob
    ranks: list[int]
    title: str
    warnings: tuple[str, ...] = ()


def plan_of(source: ConfigSource, *, harness: Path | None, repo: Path | None, snapshot: Path | None) -> Plan:
    """Return the plan of a probe.

    Raises:
        UsageError: the options contradict each other.
        HarnessError: the harness file cannot be one.
        ConfigError: the configuration is wrong.
    """
    if harness is None and repo is not None:
        raise UsageError("--repo without --harness", remedy="name a harness file, or leave --repo out")
    plan = _bundled_plan(source) if harness is None else _harness_plan(source, harness, repo or Path())
    if snapshot is None:
        return plan
    if len(plan.ranks) > 1:
        raise UsageError("--snapshot with several ranks", remedy="choose one with --rank N")
    return replace(plan, job=replace(plan.job, snapshot_path=str(snapshot.absolute())))


def _bundled_plan(source: ConfigSource) -> Plan:
    from oomscope.probe.card import check_card
    from oomscope.probe.jobs import bundled_job
    from oomscope.probe.ranks import chosen_ranks

    loaded = source.load()
    check_card(loaded)
    return Plan(
        job=bundled_job(loaded.config),
        ranks=chosen_ranks(loaded.config.probe.rank, loaded.config),
        title=source.title,
        warnings=(*loaded.remarks, *(str(warning) for warning in loaded.warnings)),
    )


def _harness_plan(source: ConfigSource, harness: Path, repo: Path) -> Plan:
    from oomscope.probe.harness import check_harness
    from oomscope.probe.job import HarnessTarget
    from oomscope.probe.jobs import harness_job
    from oomscope.probe.ranks import chosen_ranks

    if source.path or source.preset:
        raise UsageError(
            f"both --harness and {source.title}", remedy="a harness brings its own model: name one of them"
        )
    check_harness(harness)
    if not repo.is_dir():
        what = "is no directory" if repo.exists() else "no such checkout"
        raise UsageError(what, where=str(repo), remedy="give --repo the directory of the checkout")
    settings = harness_settings(source.overrides)
    target = HarnessTarget(harness=str(harness.absolute()), repo=str(repo.absolute()))
    title = f"{repo.absolute().name} through {harness.name}"
    return Plan(job=harness_job(target, settings), ranks=chosen_ranks(settings.probe.rank, settings), title=title)
