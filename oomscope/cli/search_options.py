"""What the command line says about a search, and what every kind of search takes from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from oomscope.cli.options_axes import AxisOptions
from oomscope.cli.options_checkouts import CheckoutOptions
from oomscope.cli.options_steps import StepOptions
from oomscope.errors import UsageError
from oomscope.probe.harness_settings import harness_settings

if TYPE_CHECKING:
    from oomscope.bisect.places import Places
    from oomscope.bisect.predicate import Bad
    from oomscope.bisect.subjects import ConfigInRepo, HarnessFile


class Common(TypedDict):
    """The fields of :class:`~oomscope.bisect.request.SearchRequest`."""

    bad: Bad
    deadline_s: float | None
    use_cache: bool
    places: Places
    jobs: int


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The values of the options."""

    ends: str
    axes: AxisOptions = field(default_factory=AxisOptions)
    steps: StepOptions = field(default_factory=StepOptions)
    checkouts: CheckoutOptions = field(default_factory=CheckoutOptions)
    overrides: tuple[str, ...]
    paths: tuple[str, ...]
    repo: Path | None
    config: str | None
    dialect: str | None
    harness: Path | None
    bad: str
    first_parent: bool
    deadline: float | None
    fresh: bool
    state: Path | None
    jobs: int = 1

    def common(self) -> Common:
        """Return what all requests have in common.

        Raises:
            UsageError: ``--bad`` names no class of results.
        """
        from oomscope.bisect.predicate import Bad

        return Common(
            bad=Bad.parse(self.bad),
            deadline_s=self.deadline,
            use_cache=not self.fresh,
            places=self.places(),
            jobs=self.jobs,
        )

    def places(self) -> Places:
        """Return where results and clones are kept."""
        from oomscope.bisect.places import Places

        return Places.default() if self.state is None else Places(self.state.absolute())

    def subject(self) -> ConfigInRepo | HarnessFile:
        """Return what of a commit is measured.

        Raises:
            UsageError: nothing says it, or two options do.
        """
        from oomscope.bisect.subjects import ConfigInRepo, HarnessFile

        if self.config and self.harness and self.axes.axis != "both":
            raise UsageError("both --config and --harness", remedy="name one: a harness brings its own model")
        if self.harness and self.dialect:
            raise UsageError("both --from and --harness", remedy="name one: a harness brings its own model")
        if self.config and not self.harness:
            return ConfigInRepo(path=self.config, dialect=self.dialect, overrides=self.overrides)
        if self.harness:
            settings = harness_settings(self.overrides)
            return HarnessFile(path=self.harness, settings=settings, overrides=self.overrides)
        raise UsageError(
            "nothing says what to measure of a commit", remedy="give --config PATH-IN-REPO or --harness FILE"
        )

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
            "--harness": self.harness and not repo,
            "--first-parent": self.first_parent,
            "paths": self.paths,
            "--steps": self.steps.wanted(),
            "--hunks": self.axes.hunks,
            **(self.checkouts.given if not repo else {}),
        }
        for name, value in given.items():
            if value:
                raise UsageError(f"{name} with {what}", remedy="it is about commits: leave it out")
