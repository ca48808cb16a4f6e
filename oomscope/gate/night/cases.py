"""From a case of the suite to jobs for the probe, and to one result that speaks for all of its ranks."""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import OomscopeError, UsageError
from oomscope.files import real_path
from oomscope.gate.suite.suite import Case
from oomscope.probe.job import CheckoutTarget, OwnKind, ProbeJob, bundled_job, checkout_job, named_target
from oomscope.probe.machine.checks import check_card
from oomscope.probe.process.launch import StoppedError
from oomscope.probe.ranks import chosen_ranks, probe_ranks
from oomscope.probe.result import Failure, ProbeResult
from oomscope.probe.targets.recipes import check_target
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    from oomscope.config.schema import Config


Probe = Callable[[ProbeJob, threading.Event], ProbeResult]
"""Measures a job, and raises ``launch.StoppedError`` soon after the event was set: the gate's only way to a device."""


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """What a case asks of the probe."""

    job: ProbeJob
    ranks: tuple[int, ...]
    config: Config
    """Says how the ranks are laid out; of your own code, only how many there are."""
    notes: tuple[str, ...] = ()
    """What is to be said of where the configuration comes from."""

    def measure(self, probe: Probe, stop: threading.Event) -> ProbeResult:
        """Return the measurement: of several ranks, that of the worst; a defect in one hides none of the others.

        Raises:
            OomscopeError: what is wrong is so for every rank.
            StoppedError: ``stop`` was set.
        """

        def answered(job: ProbeJob) -> ProbeResult:
            try:
                return probe(job, stop)
            except (OomscopeError, StoppedError):
                raise
            except Exception as error:  # noqa: BLE001 - the other ranks have their answers
                return _defective(job, error)

        return probe_ranks(self.job, list(self.ranks), answered)

    def rank_text(self, rank: int) -> str:
        """Return ``8 of 16, stage 2 of 2``, where ``rank`` stands in its world; empty in a world of one."""
        from oomscope.model.parallel.parallel_state import rank_coordinates

        parallel = self.config.parallel
        stages = parallel.pipeline_model_parallel_size
        stage = "" if stages == 1 else f", stage {rank_coordinates(self.config, rank).pp + 1} of {stages}"
        return "" if parallel.world_size == 1 else f"{rank} of {parallel.world_size}{stage}"


def _defective(job: ProbeJob, error: Exception) -> ProbeResult:
    """Return what says that measuring ``job`` met a defect."""
    return ProbeResult(
        backend="virtual" if job.backend == "auto" else job.backend,
        outcome="error",
        rank=job.rank,
        world_size=job.world_size,
        failure=Failure(kind="internal", message=traced(error)),
    )


def traced(error: Exception) -> str:
    """Return what an exception that is a defect says, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def plan_of(case: Case) -> CasePlan:
    """Return the plan of ``case``.

    Raises:
        ConfigError: the preset, the file or an override is wrong.
        UsageError: the harness, entry or command cannot be one, or the world has no such rank.

    Each names the line of the suite, or of the file that the suite names.
    """
    try:
        return _bundled_plan(case) if case.own_kind is None else _own_plan(case, case.own_kind)
    except OomscopeError as error:
        raise blamed(error, case) from None
    except OSError as error:  # a name that is too long, a circle of links
        is_checkout = error.filename is not None and Path(error.filename) in {case.checkout, real_path(case.checkout)}
        where = case.place("repo" if is_checkout else case.kind)
        raise UsageError(f"cannot be used: {error.strerror}", where=where, remedy="give another path") from None


def own_target(case: Case, kind: OwnKind) -> CheckoutTarget:
    """Return the user's own code that ``case`` reaches by ``kind``, in its checkout."""
    regex, glob = case.extras.get("metric_regex"), case.extras.get("snapshot_glob")
    source = str(case.path) if kind == "harness" else case.source
    return named_target(kind, source, str(real_path(case.checkout)), metric_regex=regex, snapshot_glob=glob)


def _bundled_plan(case: Case) -> CasePlan:
    from oomscope.config.importers.load import load_in
    from oomscope.config.load import load_preset, read_file

    if case.kind == "preset":
        loaded = load_preset(case.source, case.overrides)
    else:
        text, dialect = read_file(case.path), case.extras.get("from")
        loaded = load_in(dialect, text, source=str(case.path), overrides=case.overrides)
    check_card(loaded)
    ranks = chosen_ranks(loaded.config.probe.rank, loaded.config)
    return CasePlan(job=bundled_job(loaded.config), ranks=tuple(ranks), config=loaded.config, notes=loaded.remarks)


def _own_plan(case: Case, kind: OwnKind) -> CasePlan:
    target = own_target(case, kind)
    check_target(target)
    if not case.checkout.is_dir():
        raise UsageError(f"no such checkout: {case.checkout}", where="--repo", remedy="give --repo a folder")
    settings = harness_settings(case.overrides)
    ranks = chosen_ranks(settings.probe.rank, settings)
    return CasePlan(job=checkout_job(target, settings), ranks=tuple(ranks), config=settings)


Error = TypeVar("Error", bound=OomscopeError)
_KEYS = {
    "--world-size": "probe.world_size",
    "--harness": "harness:",
    "--entry": "entry:",
    "--command": "command:",
    "--metric-regex": "metric_regex:",
    "--snapshot-glob": "snapshot_glob:",
    "--repo": "repo:",
    "--rank": "rank:",
    "--limit": "limit:",
}
"""Options of a probe, and what a suite has in their place."""
_OPTION = re.compile(rf"(?<![\w-])(?:{'|'.join(_KEYS)})(?![\w-])")


def blamed(error: Error, case: Case) -> OomscopeError:
    """Return ``error`` of the plan of ``case`` with its place in the suite, and a remedy in the suite's words."""
    if not isinstance(error, InvalidConfigError):
        place, remedy = _place(error.where, case), _in_keys(error.remedy)
        return type(error)(error.message, where=place, remedy=remedy)
    return InvalidConfigError(
        [
            replace(problem, where=_place(problem.where, case), remedy=_in_keys(problem.remedy))
            for problem in error.problems
        ]
    )


def _place(where: str | None, case: Case) -> str:
    """Return the place in the suite for an option, an override, the preset or a file as a whole; else ``where``."""
    if not where:
        return case.place(case.kind)
    if where.startswith("override "):
        return case.places.get(where.removeprefix("override "), f"{case.where}: {where}")
    if option := _OPTION.match(where):
        key = _KEYS[option[0]].rstrip(":")
        return case.places.get(key, f"{case.where}: {key}")
    if where == f"preset {case.source}" or Path(where).absolute() == case.path.absolute():
        return f"{case.place(case.kind)}: {where}"
    return where


def _in_keys(remedy: str | None) -> str | None:
    return None if remedy is None else _OPTION.sub(lambda option: _KEYS[option[0]], remedy)
