"""From a case of the suite to jobs for the probe, and to one result for all of its ranks."""

from __future__ import annotations

import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomscope.config.problems import InvalidConfigError
from oomscope.errors import OomscopeError, UsageError
from oomscope.files import real_path
from oomscope.gate.suite.suite import Case
from oomscope.probe.job import CheckoutTarget, OwnKind, ProbeJob, bundled_job, checkout_job, named_target
from oomscope.probe.machine.checks import check_card
from oomscope.probe.ranks import chosen_ranks, probe_ranks
from oomscope.probe.result import ProbeResult
from oomscope.probe.targets.recipes import check_target
from oomscope.probe.targets.settings import harness_settings
from oomscope.probe.tuning.variants import Probe

if TYPE_CHECKING:
    from oomscope.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """The job and the ranks of a case."""

    job: ProbeJob
    ranks: tuple[int, ...]
    config: Config
    """Configuration that says how the ranks are laid out; for your own code, only how many there are."""
    notes: tuple[str, ...] = ()
    """Remarks on where the configuration comes from."""

    def measure(self, probe: Probe, stop: threading.Event) -> ProbeResult:
        """Return the measurement: of several ranks, that of the worst."""
        return probe_ranks(self.job, list(self.ranks), lambda job: probe(job, stop))

    def rank_text(self, rank: int) -> str:
        """Return ``8 of 16, stage 2 of 2``, the place of ``rank`` in its world; empty in a world of one."""
        from oomscope.model.parallel.parallel_state import stage_of

        parallel = self.config.parallel
        stages = parallel.pipeline_model_parallel_size
        stage = "" if stages == 1 else f", stage {stage_of(self.config, rank) + 1} of {stages}"
        return "" if parallel.world_size == 1 else f"{rank} of {parallel.world_size}{stage}"


def traced(error: Exception) -> str:
    """Return the message of an exception that is a defect, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def plan_of(case: Case) -> CasePlan:
    """Return the plan of ``case``.

    Raises:
        OomscopeError: the preset, file, override, harness, entry or command is wrong, or the world has no such rank;
            with the line of the suite.
    """
    try:
        return _bundled_plan(case) if case.own_kind is None else _own_plan(case, case.own_kind)
    except InvalidConfigError as error:
        problems = [replace(problem, where=f"{case.where}: {problem.where}") for problem in error.problems]
        raise InvalidConfigError(problems) from None
    except OomscopeError as error:
        where = f"{case.where}: {error.where}" if error.where else case.where
        raise type(error)(error.message, where=where, remedy=error.remedy) from None
    except OSError as error:
        raise UsageError(f"cannot be used: {error.strerror}", where=case.where, remedy="give another path") from None


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
        raise UsageError(f"no such checkout: {case.checkout}", remedy="give repo: a folder")
    settings = harness_settings(case.overrides)
    ranks = chosen_ranks(settings.probe.rank, settings)
    return CasePlan(job=checkout_job(target, settings), ranks=tuple(ranks), config=settings)
