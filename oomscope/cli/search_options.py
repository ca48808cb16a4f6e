"""What the command line says about a search, and what every kind of search takes from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from oomscope.bisect.run.places import JournalUse
from oomscope.cli.options_axes import AxisOptions
from oomscope.cli.options_checkouts import CheckoutOptions
from oomscope.cli.options_noise import NoiseOptions
from oomscope.cli.options_steps import StepOptions
from oomscope.cli.options_targets import NAMES, TargetOptions
from oomscope.errors import UsageError
from oomscope.probe.targets.settings import harness_settings

if TYPE_CHECKING:
    from oomscope.bisect.results.noise import Noise
    from oomscope.bisect.results.predicate import Bad
    from oomscope.bisect.run.places import Places
    from oomscope.bisect.run.slurm import ClusterSettings
    from oomscope.bisect.targets.subjects import ConfigInRepo, OwnCode


class Common(TypedDict):
    """The fields of :class:`~oomscope.bisect.requests.SearchRequest`."""

    bad: Bad
    deadline_s: float | None
    use_cache: bool
    places: Places
    jobs: int
    cluster: ClusterSettings | None
    journal: JournalUse
    noise: Noise | None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The values of the options."""

    ends: str
    axes: AxisOptions = field(default_factory=AxisOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    noise: NoiseOptions = field(default_factory=NoiseOptions)
    checkouts: CheckoutOptions = field(default_factory=CheckoutOptions)
    overrides: tuple[str, ...]
    paths: tuple[str, ...]
    repo: Path | None
    config: str | None
    dialect: str | None
    target: TargetOptions
    bad: str
    first_parent: bool
    deadline: float | None
    fresh: bool
    state: Path | None
    jobs: int = 1
    cluster: ClusterSettings | None = None
    journal: JournalUse = field(default_factory=JournalUse)

    def common(self) -> Common:
        """Return what all requests have in common.

        Raises:
            UsageError: ``--bad`` names no class of results, or one that the target cannot answer.
        """
        self._answering_target()
        return Common(
            bad=self._wanted(),
            deadline_s=self.deadline,
            use_cache=not self.fresh,
            places=self.places(),
            jobs=self.jobs,
            cluster=self.cluster,
            journal=self.journal,
            noise=self.noise.wanted(),
        )

    def places(self) -> Places:
        """Return where results and clones are kept."""
        from oomscope.bisect.run.places import Places

        return Places.default() if self.state is None else Places(self.state.absolute())

    def subject(self) -> ConfigInRepo | OwnCode:
        """Return what of a commit is measured.

        Raises:
            UsageError: nothing says it, or two options do.
        """
        from oomscope.bisect.targets.subjects import ConfigInRepo

        own = self.target.option
        if own is None and self.config:
            return ConfigInRepo(path=self.config, dialect=self.dialect, overrides=self.overrides)
        if own is None:
            raise UsageError("nothing says what to measure of a commit", remedy=f"give --config PATH-IN-REPO, {NAMES}")
        for other, given in (("--config", self.config and self.axes.axis != "both"), ("--from", self.dialect)):
            if given:
                raise UsageError(f"both {other} and {own}", remedy="name one: your own code brings its own model")
        return self._answering_target().own_code(harness_settings(self.overrides), self.overrides)

    def _answering_target(self) -> TargetOptions:
        return self.target.answering(self._wanted(), steps=self.steps.wanted() is not None)

    def _wanted(self) -> Bad:
        from oomscope.bisect.results.predicate import Bad

        return Bad.parse(self.bad)

    def refuse_about_commits(self, what: str, *, repo: bool = False) -> None:
        """Refuse the options that are about a range of commits.

        Args:
            what: what is searched in place of one.
            repo: a repository has a meaning, and what of it is measured.

        Raises:
            UsageError: one of them was given.
        """
        given = {
            "--repo": self.repo and not repo,
            "--config": self.config and not repo,
            self.target.option or "": self.target.option and not repo,
            "--first-parent": self.first_parent,
            "paths": self.paths,
            "--steps": self.steps.wanted(),
            "--hunks": self.axes.hunks,
            **(self.checkouts.given if not repo else {}),
        }
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} with {what}", remedy=f"leave {name} out: it is about commits")
