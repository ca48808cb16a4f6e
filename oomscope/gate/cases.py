"""From a case of the suite to jobs for the probe, and to one result that speaks for all of its ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from oomscope.errors import ConfigError, UsageError
from oomscope.files import real_path
from oomscope.gate.suite import Case
from oomscope.probe.card import check_card
from oomscope.probe.harness import check_harness
from oomscope.probe.harness_settings import harness_settings
from oomscope.probe.job import HarnessTarget, ProbeJob
from oomscope.probe.jobs import bundled_job, checkout_job
from oomscope.probe.ranks import chosen_ranks, probe_ranks
from oomscope.probe.result import ProbeResult

Probe = Callable[[ProbeJob, threading.Event], ProbeResult]
"""Measures a job, and raises ``launch.StoppedError`` soon after the event was set: the gate's only way to a device."""


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """What a case asks of the probe."""

    job: ProbeJob
    ranks: tuple[int, ...]

    def measure(self, probe: Probe, stop: threading.Event) -> ProbeResult:
        """Return the measurement: of several ranks, that of the worst."""
        return probe_ranks(self.job, list(self.ranks), lambda job: probe(job, stop))


def plan_of(case: Case) -> CasePlan:
    """Return the plan of ``case``.

    Raises:
        ConfigError: the preset, the file or an override is wrong.
        UsageError: the harness cannot be one, or the world has no such rank.
    """
    return _harness_plan(case) if case.kind == "harness" else _bundled_plan(case)


def _bundled_plan(case: Case) -> CasePlan:
    from oomscope.config.load import load_config, load_preset

    if case.kind == "preset":
        try:
            loaded = load_preset(case.source, case.overrides)
        except ConfigError as error:
            raise _placed(error, case) from None
    else:
        loaded = load_config(case.path, case.overrides)
    check_card(loaded)
    ranks = chosen_ranks(loaded.config.probe.rank, loaded.config)
    return CasePlan(job=bundled_job(loaded.config), ranks=tuple(ranks))


def _harness_plan(case: Case) -> CasePlan:
    check_harness(case.path)
    if not case.checkout.is_dir():
        raise UsageError(f"no such checkout: {case.checkout}", where=case.where, remedy="give repo: a folder")
    settings = harness_settings(case.overrides)
    target = HarnessTarget(harness=str(case.path.absolute()), repo=str(real_path(case.checkout)))
    ranks = chosen_ranks(settings.probe.rank, settings)
    return CasePlan(job=checkout_job(target, settings), ranks=tuple(ranks))


def _placed(error: ConfigError, case: Case) -> ConfigError:
    """Return ``error`` with the line of the suite, where it names no place of its own."""
    return error if error.where else ConfigError(error.message, where=case.where, remedy=error.remedy)
